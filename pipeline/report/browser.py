"""The data of the page's sample browser: some samples, token by token, under every intervention.

`choosing` picks the samples and reads them. The page's script and its template read the same rows.
"""

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.analysis.text import visible

OPEN = 3
"""Samples of each family that the page shows without scripts, for the family's first model."""

WORD_CHARACTERS = 64
"""Longer tokens are cut to their start."""

NAME_CHARACTERS = 200
"""Longer names are cut likewise."""

Row = Sequence[Any]
"""A continuation: log probability of the true suffix in nats, smallest lead of a true token over
the next best in logits (both null where unknown), and, if a token is wrong, the place of the first
wrong one and the ids from there on."""


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
        rows: model -> intervention -> `row`.
        each: model -> intervention -> `packed` numbers of single tokens; empty where not kept.
    """

    sample_id: int
    why: str
    split: str
    copies: int | None
    prefix: Sequence[int]
    suffix: Sequence[int]
    lengths: tuple[int, int]
    broken: Mapping[str, tuple[int, int]]
    rows: Mapping[str, Mapping[str, Row]]
    each: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


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

    def word(self, token: int) -> str:
        """The token as text if text may be shown, else its id. The page's script does the same."""
        return shown(self.words[token]) if token in self.words else str(token)

    def data(self) -> dict[str, Any]:
        """What the script needs, as JSON values; rows are null where there is no continuation."""
        models = list(dict.fromkeys(name for sample in self.samples for name in sample.rows))
        names = [list(self.interventions.get(model, ())) for model in models]
        places = list(zip(models, names, strict=True))

        def listed(of: Mapping[str, Mapping[str, Any]], missing: str | None) -> list[list[Any]]:
            return [[of.get(m, {}).get(name, missing) for name in own] for m, own in places]

        return {
            "name": shown(self.name, NAME_CHARACTERS),
            "models": [shown(name, NAME_CHARACTERS) for name in models],
            "interventions": names,
            "words": {str(token): shown(word) for token, word in self.words.items()},
            "samples": [
                {
                    "id": sample.sample_id,
                    "why": shown(sample.why),
                    "prefix": list(sample.prefix),
                    "cut": len(sample.prefix) < sample.lengths[0],
                    "suffix": list(sample.suffix),
                    "rows": listed(sample.rows, None),
                    "each": listed(sample.each, "") if any(sample.each.values()) else [],
                }
                for sample in self.samples
            ],
        }


def row(
    suffix: Sequence[int],
    tokens: Sequence[int],
    log_prob: float | None = None,
    margin: float | None = None,
) -> Row:
    """A continuation, of as many tokens as the suffix, as a `Row` with three significant digits."""
    numbers = [None if value is None else float(f"{value:.3g}") for value in (log_prob, margin)]
    wrong = [i for i, pair in enumerate(zip(suffix, tokens, strict=True)) if pair[0] != pair[1]]
    return [*numbers, *([wrong[0], *tokens[wrong[0] :]] if wrong else [])]


def packed(each: Sequence[Sequence[float]]) -> str:
    """The numbers of each token in four bytes, as base64, since the page holds thousands of them.

    One byte is the log probability, in tenths of a nat below 0; two are the rank, low byte first;
    one is the margin, in tenths. A value too large for its bytes is stored as the largest number.
    `each` has log probabilities, ranks and margins, given the true tokens before.
    """
    made = bytearray()
    for log_prob, rank, margin in zip(*each, strict=True):
        below, lead = (min(255, round(10 * value)) for value in (-log_prob, margin))
        made += struct.pack("<BHB", below, min(65_535, int(rank)), lead)
    return base64.b64encode(made).decode()


SIGNS = {"right": "", "first-error": "✗ ", "wrong": "× ", "right-again": "↺ "}
"""State of a token -> the sign before it, so that no state is shown by colour alone."""


def states(suffix: Sequence[int], continued: Row) -> Iterator[tuple[str, int]]:
    """State, of `SIGNS`, and id of each token of a continuation, as in the page's script."""
    first = continued[2] if len(continued) > 2 else len(suffix)
    right, error, wrong, again = SIGNS
    for i, (true, token) in enumerate(zip(suffix, [*suffix[:first], *continued[3:]], strict=True)):
        yield (
            right if i < first else error if i == first else again if token == true else wrong,
            token,
        )


def shown(text: str, most: int = WORD_CHARACTERS) -> str:
    """`text` for display: cut, with line breaks marked and invisible characters spelled out."""
    short = text if len(text) <= most else text[:most] + "…"
    return visible(short).replace("\n", "↵\n")
