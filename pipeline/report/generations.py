"""The texts that the models wrote under the interventions, side by side (Fig. 4 of the paper).

A model may write memorized text, which can be private: for models trained on real data token ids
are shown, unless ``show_text`` is set.
"""

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
class Generations:
    """The continuations of one prompt by one model with one way of decoding.

    Args:
        model: name.
        prompt: text.
        decoding: greedy or sampled.
        lines: rows of the table of generations by column, the baseline's first; with ``same``, the
            start that a continuation shares with the baseline's, and ``other``, the rest, empty
            for the baseline.
        ids: whether the lines are token ids.
    """

    model: str
    prompt: str
    decoding: str
    lines: Sequence[Mapping[str, Any]]
    ids: bool = False


def read_generations(
    data: Path, manifests: Sequence[Mapping[str, Any]], *, show_text: bool = False
) -> list[Generations]:
    """All continuations, by model, prompt and way of decoding, in that order.

    A model without a table is left out. With `show_text`, models that were trained on real data
    are shown as text too.

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
            lines = [row | _parts(row, text) for row in part.iter_rows(named=True)]
            prompt, decoding = part.select("prompt", "decoding").row(0)
            found.append(Generations(model, prompt, decoding, lines, ids=not text))
    return found


def _parts(row: Mapping[str, Any], text: bool) -> dict[str, str]:
    """The part of a continuation that is the baseline's, and the rest."""
    column, where = (
        ("text", "first_difference_character") if text else ("continuation", "first_difference")
    )
    whole, at = row[column], row[where]
    parts = (whole[:at], whole[len(whole) if at is None else at :])
    same, other = parts if text else (" ".join(map(str, part)) for part in parts)
    return {"same": same, "other": other}


Collapsed = dict[tuple[str, str], dict[str, tuple[Number, Number]]]


def collapse(written: Sequence[Generations]) -> Collapsed:
    """How far the texts of one model collapse under one intervention, as means over the prompts.

    Returns:
        (model, intervention) -> way of decoding -> perplexity (geometric mean) and share of
        distinct bigrams, in their order.
    """
    lines: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for text in written:
        for line in text.lines:
            lines.setdefault((text.model, line["intervention"], text.decoding), []).append(line)
    made: Collapsed = {}
    for (model, name, decoding), several in lines.items():
        table = f"generations/{model}"
        place = f"{table}/{name}/{decoding}"
        perplexity = geometric_mean(line["baseline_perplexity"] for line in several)
        distinct = fmean(line["distinct_bigrams"] for line in several)
        made.setdefault((model, name), {})[decoding] = (
            Number(f"{place}/perplexity", perplexity, table=table),
            Number(f"{place}/distinct", distinct, unit=SHARE, table=table),
        )
    return made
