"""Lets Hydra fill in ``${loops:}``, whoever composes a study: `dvc exp run -S`, too."""

from pipeline.study.loops import register

register()
