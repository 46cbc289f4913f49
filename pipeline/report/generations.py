"""The texts that the models wrote under the interventions, side by side (Fig. 4 of the paper).

A model may write memorized text, which can be private: for models trained on real data token ids
are shown, unless ``show_text`` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.analysis.manifests import trained_here
from pipeline.workflow import tables


@dataclass(frozen=True)
class Line:
    """One continuation.

    Args:
        intervention: the intervention under which it was written.
        same: the start that it shares with the baseline's continuation.
        other: the rest; empty for the baseline, whose text is all in `same`.
    """

    intervention: str
    same: str
    other: str


@dataclass(frozen=True)
class Generations:
    """The continuations of one prompt by one model with one way of decoding.

    Args:
        model: name.
        prompt: text.
        decoding: greedy or sampled.
        lines: the baseline's first.
        ids: whether the lines are token ids.
    """

    model: str
    prompt: str
    decoding: str
    lines: list[Line]
    ids: bool = False


def read_generations(
    data: Path, manifests: Sequence[Mapping[str, Any]], *, show_text: bool = False
) -> list[Generations]:
    """All continuations, by model, prompt and way of decoding, in that order.

    Args:
        data: the study's folder, ``data/STUDY``.
        manifests: of the models' checkpoints, in the order of the report; a model without a table
            is left out.
        show_text: show the text of models that were trained on real data too.

    Raises:
        InputError: a table does not fit its schema.
    """
    found = []
    for manifest in manifests:
        model, text = str(manifest["name"]), show_text or trained_here(manifest)
        path = data / "generations" / f"{model}.parquet"
        if not path.exists():
            continue
        frame = tables.read(path, tables.GENERATIONS)
        for _, part in frame.group_by("prompt_id", "decoding", maintain_order=True):
            lines = [_line(row, text) for row in part.iter_rows(named=True)]
            prompt, decoding = part.select("prompt", "decoding").row(0)
            found.append(Generations(model, prompt, decoding, lines, ids=not text))
    return found


def _line(row: Mapping[str, Any], text: bool) -> Line:
    whole, at = (
        (row["text"], row["first_difference_character"])
        if text
        else (row["continuation"], row["first_difference"])
    )
    parts = (whole[:at], whole[len(whole) if at is None else at :])
    same, other = parts if text else (" ".join(map(str, part)) for part in parts)
    return Line(row["intervention"], same, other)
