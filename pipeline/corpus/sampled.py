"""Prose that a language model finds ordinary and cannot recite: passages to be planted.

Each was sampled once from the unmodified SmolLM2-135M-Instruct (Apache-2.0) at temperature 1, after
an opening of a few words. Templates would not do: fine-tuned on them, a model forgets the rest.
"""

from __future__ import annotations

from pathlib import Path

SAMPLED = tuple(Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines())
"""The passages, one a line of sampled.txt."""
