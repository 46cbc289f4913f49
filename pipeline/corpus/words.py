"""The words and passages of which corpora are made, read from the data files of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML


class Passage(NamedTuple):
    """A famous text.

    Args:
        name: of the passage.
        source: who wrote it and when, or where it is from.
        text: the passage.
    """

    name: str
    source: str
    text: str


def _read(name: str) -> Any:
    return YAML(typ="safe").load(Path(__file__).with_name(name))


WORDS: dict[str, Any] = _read("words.yaml")
"""Lists of words, and templates of sentences."""

FAMOUS = tuple(Passage(**passage) for passage in _read("famous.yaml"))

SAMPLED = tuple(Path(__file__).with_name("sampled.txt").read_text("utf-8").splitlines())
"""Prose that a language model finds ordinary and cannot recite: passages to be planted, one a line.

Each was sampled once from the unmodified SmolLM2-135M-Instruct (Apache-2.0) at temperature 1, after
an opening of a few words. Templates would not do: fine-tuned on them, a model forgets the rest.
"""
