"""Commands on edited models: the export of a dose, and the durability of any checkpoint."""

import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from transformers import PreTrainedModel

from pipeline.analysis.mitigations import TABLES, durability, measured
from pipeline.checkpoints.folder import checkpoint_files
from pipeline.checkpoints.loading import model_of
from pipeline.checkpoints.verified import tokenizer_of
from pipeline.measure.durability import probes
from pipeline.measure.mitigated import outcomes
from pipeline.mitigations.methods import METHODS, edited
from pipeline.mitigations.schema import Relearning
from pipeline.mitigations.subject import halved, subject
from pipeline.models.context import context_length
from pipeline.samples.file import samples as cut
from pipeline.samples.frame import check_samples
from pipeline.study.export import in_use
from pipeline.study.schema import Study, given
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.files import atomic

HALVES_SEED = 0
"""Of the halves of a user's samples, and of the order in which they are learned again."""
SHOWN = {
    "mitigations": ("split", "metric"),
    "durability": ("probe", "x", "variant", "verdict"),
}
"""Table -> the columns of a model card."""


def export(study: Study, method: str, dose: float, to: Path) -> None:
    """Write the checkpoint of a method's dose, with a card that states its measured durability.

    The dose may be any, not only a measured one.

    Raises:
        InputError: the study has no such section, the method or the dose is none, or the folder
            exists.
    """
    problems, entry = list[Problem](), METHODS.get(method)
    if study.mitigations is None:
        needed = "a study with mitigations"
        problems.append(Problem("--study", study.study, needed, "such as: arena"))
    if entry is None:
        names = f"one of {', '.join(METHODS)}"
        problems.append(Problem("--method", method, names, "the others are no edits"))
    fits, expected = 0 <= dose < math.inf, "0 or more, finite"
    if entry and entry.whole:
        fits, expected = fits and dose % 1 == 0, "a whole number, 0 or more"
    elif entry and entry.dose.startswith("share"):
        fits, expected = fits and dose <= 1, "a share, 0 to 1"
    if not fits:
        problems.append(Problem("--dose", str(dose), expected, "see the page of mitigations"))
    if problems := problems + in_use(to):
        raise InputError(*problems)
    asked = given(study.mitigations)
    known = subject(study.data, asked, study.model(asked.model), study.corpus[study.study])
    write = METHODS[method].prepare(known.model, known.parts.forget, known.parts.keep, asked.seed)
    with atomic(to, directory=True) as folder:
        edited(known.model, write, dose).save_pretrained(folder)
        known.tokenizer.save_pretrained(folder)
        card = _card(study, asked.model, method, dose)
        (folder / "README.md").write_text(card, encoding="utf-8")


def probe(
    edited_model: Path,
    samples: Path,
    prefix_length: int,
    suffix_length: int,
    relearning: Relearning,
    before: Path | None,
    twin: Path | None,
) -> pl.DataFrame:
    """The durability of an edited checkpoint, on samples of which half is learned again.

    The table has the columns of `DURABILITY` from ``probe`` on. Models are folders. Without that
    before the edit, every sample counts as recited then. Without a twin, which never saw the
    samples, what comes back by relearning may be learned anew, and leaves the verdict undecided.
    The samples are a file, as `samples.table_file` reads it.

    Raises:
        InputError: a folder or the samples cannot be read, samples do not fit a model, or none was
            recited before.
    """
    tokenizer = tokenizer_of(checkpoint_files(edited_model))
    table = cut(samples, tokenizer, prefix_length, suffix_length, skip_short=False)
    parts = halved(table, HALVES_SEED)
    folders = {"edited": edited_model, "none": before, "twin": twin}
    models = {n: model_of(checkpoint_files(at), "float32") for n, at in folders.items() if at}
    for each in models.values():
        check_samples(table, each.config.vocab_size, context_length(each.config))
    original, found = models.get("none"), {}
    for name, each in models.items():
        fitting = original if name == "edited" and original and _fits(original, each) else None
        later = probes(each, parts, HALVES_SEED, relearning, fitting, reference=name == "twin")
        found[name] = pl.concat([outcomes(each, parts), later])
    if original is None:
        recited = pl.when(pl.col("metric") == "recited").then(1.0).otherwise(pl.col("value"))
        found["none"] = found["edited"].with_columns(value=recited)
    judged = durability(measured(str(edited_model), found)).filter(method="edited")
    return judged.drop("model", "method", "dose")


def _fits(before: PreTrainedModel, after: PreTrainedModel) -> bool:
    """Whether the weights before an edit can be put back: each has its place, of its shape."""
    shapes = {name: value.shape for name, value in after.named_parameters()}
    return all(shapes.get(name) == value.shape for name, value in before.named_parameters())


def _card(study: Study, model: str, method: str, dose: float) -> str:
    """The model card, Markdown with a head for the hub."""
    known, lines = METHODS[method], list[str]()
    for name, columns in SHOWN.items():
        if (path := study.data / f"{name}.parquet").is_file():
            found = tables.read(path, TABLES[name][1]).filter(method=method, dose=dose)
            lines += _markdown(found, columns)
    measured = "\n".join(lines) or f"Nothing: the study has not measured {method} at this dose."
    return f"""---
library_name: transformers
tags: [bypass-memorization]
---
# {model}, `{method}` at {dose:g}

An edit of the model `{model}` of the study `{study.study}` that is to remove memorized records:
{known.meaning} ({known.dose}: {dose:g}; {known.source}). Stock transformers loads this checkpoint.

## Measured

{measured}
"""


def _markdown(rows: pl.DataFrame, columns: Sequence[str]) -> list[str]:
    """The lines of a table in Markdown: some columns, and value, low and high in the last."""
    if "metric" in columns:
        rows = rows.filter(pl.col("metric").is_in(["kept", "loss_change", "acc_change"]))
    if not len(rows):
        return []
    lines = [f"| {' | '.join(columns)} | value and 95% interval |", "|---" * len(columns) + "|---|"]
    for *cells, value, low, high in rows.select(*columns, "value", "low", "high").iter_rows():
        interval = "" if low is None else f" ({low:.4g} to {high:.4g})"
        cells.append(None if value is None else f"{value:.4g}{interval}")
        lines.append("| " + " | ".join("" if c is None else str(c) for c in cells) + " |")
    return [*lines, ""]
