"""Commands on edited models: the export of a dose, and the durability of any checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
from transformers import PreTrainedModel

from pipeline.analysis.mitigations import DURABILITY, MITIGATIONS, Measured, durability
from pipeline.checkpoints.folder import checkpoint_files
from pipeline.checkpoints.loading import model_of
from pipeline.checkpoints.verified import encoder, tokenizer_of
from pipeline.measure.durability import probes
from pipeline.measure.mitigated import outcomes
from pipeline.mitigations.methods import METHODS, edited
from pipeline.mitigations.parts import halved
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.mitigations.subject import subject
from pipeline.samples.file import samples as cut
from pipeline.study.schema import Study, given
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.files import atomic

HALVES_SEED = 0
"""Of the halves of a user's samples, and of the order in which they are learned again."""


@dataclass(frozen=True)
class Probed:
    """What the command `durability` was asked.

    Args:
        model: folder of the edited checkpoint.
        before: folder of the checkpoint before the edit; None: every sample counts as recited then.
        twin: folder of a checkpoint that never saw the samples; None: relearning has no verdict.
        samples: a file, as `samples.table_file` reads it.
        prefix_length: P, tokens.
        suffix_length: S, tokens.
    """

    model: Path
    before: Path | None
    twin: Path | None
    samples: Path
    prefix_length: int
    suffix_length: int


def export(study: Study, method: str, dose: float, to: Path) -> None:
    """Write the checkpoint of a method's dose, with a card that states its measured durability.

    Args:
        study: in force, with a section `mitigations` whose stages have run.
        method: one of `METHODS`.
        dose: not negative, in the method's unit; any, not only a measured one.
        to: the folder to create.

    Raises:
        InputError: the study has no such section, the method or the dose is none, or the folder
            exists.
    """
    problems = []
    if study.mitigations is None:
        problems.append(
            Problem("--study", study.study, "a study with mitigations", "such as: arena")
        )
    if method not in METHODS:
        expected = f"one of {', '.join(METHODS)}"
        problems.append(Problem("--method", method, expected, "the others are no edits"))
    if not dose >= 0:
        problems.append(Problem("--dose", str(dose), "0 or more", "see the page of mitigations"))
    if to.exists() or to.is_symlink():
        remedy = "name another folder, or delete this one"
        problems.append(Problem(f"--to {to}", "an existing file or folder", "a new name", remedy))
    if problems:
        raise InputError(*problems)
    asked = given(study.mitigations)
    known = subject(study.data, asked, study.model(asked.model), study.corpus[study.study])
    write = METHODS[method].prepare(known.model, known.parts.forget, known.parts.keep, asked.seed)
    with atomic(to, directory=True) as folder:
        edited(known.model, write, dose).save_pretrained(folder)
        known.tokenizer.save_pretrained(folder)
        card = _card(study, asked.model, method, dose)
        (folder / "README.md").write_text(card, encoding="utf-8")


def probe(asked: Probed) -> pl.DataFrame:
    """The durability of a checkpoint, as `DURABILITY`, on samples of which half is learned again.

    Raises:
        InputError: a folder or the samples cannot be read, or no sample was recited before.
    """
    files = checkpoint_files(asked.model)
    model, tokenizer = model_of(files, "float32"), tokenizer_of(files)
    lengths = asked.prefix_length, asked.suffix_length
    table = cut(asked.samples, encoder(tokenizer), *lengths, skip_short=False)
    parts = halved(table, HALVES_SEED)
    others = {
        name: model_of(checkpoint_files(folder), "float32")
        for name, folder in (("none", asked.before), ("twin", asked.twin))
        if folder is not None
    }
    before, measured = others.get("none"), {}
    for name, each in {"edited": model, **others}.items():
        original = before if name == "edited" and _fits(before, each) else None
        later = probes(each, parts, HALVES_SEED, original, reference=name == "twin")
        both = pl.concat([outcomes(each, parts), later]).with_columns(dose=pl.lit(0.0))
        measured[name] = tables.cast(both, OUTCOMES)
    if before is None:
        recited = pl.when(pl.col("metric") == "recited").then(1.0).otherwise(pl.col("value"))
        measured["none"] = measured["edited"].with_columns(value=recited)
    found = durability(Measured(str(asked.model), measured))
    return found.filter(pl.col("method") == "edited")


def _fits(before: PreTrainedModel | None, after: PreTrainedModel) -> bool:
    """Whether the weights before an edit can be put back: each has its place, of its shape."""
    if before is None:
        return False
    shapes = {name: value.shape for name, value in after.named_parameters()}
    return all(shapes.get(name) == value.shape for name, value in before.named_parameters())


def _card(study: Study, model: str, method: str, dose: float) -> str:
    """The model card, Markdown with a head for the hub."""
    known = METHODS[method]
    return f"""---
library_name: transformers
tags: [bypass-memorization]
---
# {model}, `{method}` at {dose:g}

An edit of the model `{model}` of the study `{study.study}` that is to remove memorized records:
{known.meaning} ({known.dose}: {dose:g}; {known.source}). Stock transformers loads this checkpoint.

## Measured

{_measured(study, method, dose)}
"""


def _measured(study: Study, method: str, dose: float) -> str:
    """What the study measured of a method at a dose, as tables."""
    lines, path = list[str](), study.data
    if (path / "mitigations.parquet").is_file():
        found = tables.read(path / "mitigations.parquet", MITIGATIONS)
        shown = pl.col("metric").is_in(["kept", "loss_change", "acc_change"])
        lines += _table(found.filter(shown), ["split", "metric"], method, dose)
        found = tables.read(path / "durability.parquet", DURABILITY)
        lines += _table(found, ["probe", "x", "variant", "verdict"], method, dose)
    return "\n".join(lines) or f"Nothing: the study has not measured {method} at this dose."


def _table(found: pl.DataFrame, columns: list[str], method: str, dose: float) -> list[str]:
    """The rows of a table as Markdown, with value and 95% interval; none: no lines."""
    own = found.filter((pl.col("method") == method) & (pl.col("dose") == dose))
    lines = [
        f"| {' | '.join([*columns, 'value', 'low', 'high'])} |",
        f"{'|---' * (len(columns) + 3)}|",
    ]
    for row in own.iter_rows(named=True):
        cells = [str(row[c] if row[c] is not None else "") for c in columns]
        ends = (row[end] for end in ("value", "low", "high"))
        cells += ["" if end is None else f"{end:.4g}" for end in ends]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""] if len(own) else []
