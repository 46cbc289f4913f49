"""Lets every Hydra that composes a study here fill in ``${loops:}``, `dvc exp run -S` among them."""

from pipeline.loops import register

register()
