"""The data of the page's sample browser: some samples, token by token, under every intervention.

`choosing` picks the samples and reads them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.analysis.text import visible

OPEN = 3
"""Samples of each family that the page shows without scripts, for the family's first model."""

WORD_CHARACTERS = 64
"""Longer tokens are cut to their start."""

NAME_CHARACTERS = 200
"""Longer names are cut likewise."""


@dataclass(frozen=True)
class Continuation:
    """How one intervention continues a sample.

    Args:
        tokens: the ids, as many as the suffix has.
        log_prob: of the true suffix, nats.
        margin: the smallest lead of a true token over the next best, logits.
        each: log probability and rank of each true token, given the true ones before it, and the
            margin of the likeliest; where they were kept.
    """

    tokens: Sequence[int]
    log_prob: float | None = None
    margin: float | None = None
    each: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Sample:
    """One sample and how it was continued.

    Args:
        sample_id: as in the samples table.
        why: why it is shown.
        split: memorized, control or famous.
        copies: times in the training data, where known.
        prefix: token ids; only the end of a long prefix.
        suffix: token ids; only the start of a long suffix.
        lengths: tokens of the whole prefix and the whole suffix.
        broken: model -> how many interventions end its exact match, of how many; only models that
            recite it with nothing bypassed.
        continuations: model -> intervention -> how it goes on.
    """

    sample_id: int
    why: str
    split: str
    copies: int | None
    prefix: Sequence[int]
    suffix: Sequence[int]
    lengths: tuple[int, int]
    broken: Mapping[str, tuple[int, int]]
    continuations: Mapping[str, Mapping[str, Continuation]]

    @property
    def tokenwise(self) -> bool:
        """Whether single tokens' numbers are known."""
        return any(each.each for own in self.continuations.values() for each in own.values())

    @property
    def label(self) -> str:
        """Why it is shown, and what it is."""
        copies = "" if self.copies is None else f", {self.copies} times in the training data"
        broken = [f"broken by {n} of {of} in {model}" for model, (n, of) in self.broken.items()]
        return f"{self.why}: {self.split}{copies}{''.join('; ' + each for each in broken)}"


@dataclass(frozen=True)
class Family:
    """The chosen samples of one family.

    Args:
        name: of the family.
        samples: the most informative first.
        interventions: model -> those shown, in the order of its table.
        words: token id -> text; empty where ids are shown.
        private: whether the text of real data is shown.
        why_ids: why ids are shown; empty where text is.
    """

    name: str
    samples: Sequence[Sample]
    interventions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Mapping[int, str] = field(default_factory=dict)
    private: bool = False
    why_ids: str = ""

    @property
    def models(self) -> list[str]:
        """The models that have continued any of the samples."""
        return list(dict.fromkeys(name for each in self.samples for name in each.continuations))

    def word(self, token: int) -> str:
        """The token as text if text may be shown, else its id. The page's script does the same."""
        return shown(self.words[token]) if token in self.words else str(token)

    def data(self) -> dict[str, Any]:
        """What the script needs, as JSON values.

        Each row belongs to one model and intervention: the log probability of the suffix, the
        smallest margin, the place of the first error, and the tokens from there on; null where
        unknown.
        """
        return {
            "name": shown(self.name, NAME_CHARACTERS),
            "models": [shown(name, NAME_CHARACTERS) for name in self.models],
            "interventions": [list(self.interventions.get(model, ())) for model in self.models],
            "words": {str(token): shown(word) for token, word in self.words.items()},
            "samples": [
                {
                    "id": sample.sample_id,
                    "why": shown(sample.why),
                    "prefix": list(sample.prefix),
                    "cut": len(sample.prefix) < sample.lengths[0],
                    "suffix": list(sample.suffix),
                    "rows": [
                        [_row(sample, model, name) for name in self.interventions.get(model, ())]
                        for model in self.models
                    ],
                    "each": [
                        [
                            _packed(found.each)
                            if (found := sample.continuations.get(model, {}).get(name))
                            else ""
                            for name in self.interventions.get(model, ())
                        ]
                        for model in self.models
                        if sample.tokenwise
                    ],
                }
                for sample in self.samples
            ],
        }


def _row(sample: Sample, model: str, name: str) -> list[float | int | None] | None:
    found = sample.continuations.get(model, {}).get(name)
    if found is None:
        return None
    states_found = states(sample.suffix, found.tokens)
    first = states_found.index(FIRST) if FIRST in states_found else len(states_found)
    after = [first, *found.tokens[first:]] if first < len(states_found) else []
    return [_short(found.log_prob), _short(found.margin), *after]


def _packed(each: Sequence[Sequence[float]]) -> str:
    """The numbers of each token in four bytes, as base64, since the page holds thousands of them.

    One byte is the log probability, in tenths of a nat below 0; two are the rank, low byte first;
    one is the margin, in tenths. A value too large for its bytes is stored as the largest number.
    """
    packed = bytearray()
    for log_prob, rank, margin in zip(*each, strict=True):
        packed.append(min(255, round(-10 * log_prob)))
        packed += min(65_535, int(rank)).to_bytes(2, "little")
        packed.append(min(255, round(10 * margin)))
    return base64.b64encode(packed).decode()


def _short(value: float | None) -> float | None:
    """Three significant digits."""
    return None if value is None else float(f"{value:.3g}")


RIGHT, FIRST, WRONG, AGAIN = "right", "first-error", "wrong", "right-again"


SIGNS = {RIGHT: "", FIRST: "✗ ", WRONG: "× ", AGAIN: "↺ "}
"""The sign before a cell's token, so that no state is shown by colour alone."""


def states(suffix: Sequence[int], continuation: Sequence[int]) -> list[str]:
    """Compares each token of a continuation with the true one; the page's script does the same.

    Returns:
        `RIGHT` before the first error, `FIRST`, then `WRONG` or `AGAIN`.
    """
    found: list[str] = []
    for true, written in zip(suffix, continuation, strict=True):
        before = FIRST not in found
        if true == written:
            found.append(RIGHT if before else AGAIN)
        else:
            found.append(FIRST if before else WRONG)
    return found


def shown(text: str, most: int = WORD_CHARACTERS) -> str:
    """`text` for display: cut, with line breaks marked and invisible characters spelled out."""
    short = text if len(text) <= most else text[:most] + "…"
    return visible(short).replace("\n", "↵\n")
