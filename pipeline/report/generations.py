"""What the models wrote under the interventions, side by side (Fig. 4 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import tables


@dataclass(frozen=True)
class Line:
    """One continuation.

    Args:
        intervention: under which it was written.
        same: what it has in common with the baseline's, from the start.
        other: the rest; empty for the baseline's own, whose text is all in `same`.
    """

    intervention: str
    same: str
    other: str


@dataclass(frozen=True)
class Generations:
    """The continuations of one prompt by one model in one manner of decoding.

    Args:
        model: name.
        prompt: text.
        decoding: greedy or sampled.
        lines: the baseline's first.
    """

    model: str
    prompt: str
    decoding: str
    lines: list[Line]


def read_generations(data: Path, models: Sequence[str]) -> list[Generations]:
    """All continuations, by model, prompt and manner of decoding, in their order.

    Args:
        data: the study's folder, ``data/STUDY``.
        models: names, in the order of the report; one without a table is left out.

    Raises:
        InputError: a table does not fit its schema.
    """
    found = []
    for model in models:
        path = data / "generations" / f"{model}.parquet"
        if not path.exists():
            continue
        frame = tables.read(path, tables.GENERATIONS)
        for _, part in frame.group_by("prompt_id", "decoding", maintain_order=True):
            lines = []
            for row in part.iter_rows(named=True):
                at = row["first_difference_character"]
                at = len(row["text"]) if at is None else at
                lines.append(Line(row["intervention"], row["text"][:at], row["text"][at:]))
            prompt, decoding = part.select("prompt", "decoding").row(0)
            found.append(Generations(model, prompt, decoding, lines))
    return found
