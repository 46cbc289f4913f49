"""Lets Hydra fill in ``${derived:}``, when `dvc exp run -S` composes a study."""

from pipeline.study.loops import register

register(writing=True)
