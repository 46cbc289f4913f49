"""The words and passages of which corpora are made, read from the data files of this folder."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML


class Passage(NamedTuple):
    """A famous text, its name, and who wrote it and when, or where it is from."""

    name: str
    source: str
    text: str


def text_of(name: str) -> str:
    """The text of a data file of this folder."""
    return Path(__file__).with_name(name).read_text("utf-8")


WORDS: dict[str, Any] = YAML(typ="safe").load(text_of("words.yaml"))
"""Lists of words, and templates of sentences."""

FAMOUS = tuple(Passage(**json.loads(line)) for line in text_of("famous.jsonl").splitlines())
"""Passages that nearly every language model has read, in the public domain or under licences that
allow copies. How often a model has read them is unknown, so they are neither memorized by
construction nor a control, and have a split of their own."""

SAMPLED = tuple(text_of("sampled.txt").splitlines())
"""Prose that a language model finds ordinary and cannot recite: passages to be planted, one a line.

Each was sampled once from the unmodified SmolLM2-135M-Instruct (Apache-2.0) at temperature 1, after
an opening of a few words. Templates would not do: fine-tuned on them, a model forgets the rest.
"""
