"""Lets Hydra fill in ``${loops:}``, whoever composes a study: `dvc exp run -S`, too."""

from pipeline.loops import register

register()
