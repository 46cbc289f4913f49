"""The texts that the models wrote under the interventions, side by side (Fig. 4 of the paper).

A model may write memorized text, which can be private: for models trained on real data token ids
are shown, unless ``show_text`` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from pipeline.analysis.manifests import trained_here
from pipeline.measure import schemas
from pipeline.report.numbers import SHARE, Number
from pipeline.workflow import tables


@dataclass(frozen=True)
class Line:
    """One continuation.

    Args:
        intervention: the intervention under which it was written.
        same: the start that it shares with the baseline's continuation.
        other: the rest; empty for the baseline, whose text is all in `same`.
        perplexity: per token, under the baseline; at least 1.
        distinct: share of distinct bigrams, 0 to 1.
    """

    intervention: str
    same: str
    other: str
    perplexity: float
    distinct: float


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
        frame = tables.read(path, schemas.GENERATIONS)
        for _, part in frame.group_by("prompt_id", "decoding", maintain_order=True):
            lines = [_line(row, text) for row in part.iter_rows(named=True)]
            prompt, decoding = part.select("prompt", "decoding").row(0)
            found.append(Generations(model, prompt, decoding, lines, ids=not text))
    return found


@dataclass(frozen=True)
class Collapse:
    """How far the texts of one model collapse under one intervention, averaged over the prompts.

    Args:
        model: name.
        intervention: under which they were written.
        numbers: decoding -> perplexity (geometric mean) and share of distinct bigrams.
    """

    model: str
    intervention: str
    numbers: Mapping[str, tuple[Number, Number]]


def collapse(written: Sequence[Generations]) -> list[Collapse]:
    """One entry per model and intervention, in their order."""
    lines: dict[tuple[str, str], dict[str, list[Line]]] = {}
    for text in written:
        for line in text.lines:
            by_decoding = lines.setdefault((text.model, line.intervention), {})
            by_decoding.setdefault(text.decoding, []).append(line)
    return [
        Collapse(
            model,
            intervention,
            {
                decoding: _means(f"generations/{model}/{intervention}/{decoding}", model, several)
                for decoding, several in by_decoding.items()
            },
        )
        for (model, intervention), by_decoding in lines.items()
    ]


def _means(name: str, model: str, lines: Sequence[Line]) -> tuple[Number, Number]:
    table = f"generations/{model}"
    perplexity = geometric_mean([line.perplexity for line in lines])
    distinct = fmean(line.distinct for line in lines)
    return (
        Number(f"{name}/perplexity", perplexity, table=table),
        Number(f"{name}/distinct", distinct, unit=SHARE, table=table),
    )


def _line(row: Mapping[str, Any], text: bool) -> Line:
    whole, at = (
        (row["text"], row["first_difference_character"])
        if text
        else (row["continuation"], row["first_difference"])
    )
    parts = (whole[:at], whole[len(whole) if at is None else at :])
    same, other = parts if text else (" ".join(map(str, part)) for part in parts)
    return Line(
        row["intervention"], same, other, row["baseline_perplexity"], row["distinct_bigrams"]
    )
