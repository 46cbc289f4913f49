"""The stages that make the samples of a family.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.samples.schema import Family, File, Inserted, Pile, Pythia, Records
from pipeline.study.composition import load
from pipeline.study.schema import Study, section
from pipeline.workflow.running import DOWNLOADS, FamilyName, determined_by

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


def samples_records(family: FamilyName) -> None:
    """From the records of the generated corpus."""
    from pipeline.samples.records import samples
    from pipeline.workflow import tables

    study = load()
    entry = study.family(family)
    records = tables.read(study.data / "corpus" / "records.parquet", tables.RECORDS)
    planted = section(entry.samples, Records).memorized_copies
    made = samples(records, entry.prefix_length, entry.suffix_length, planted)
    _write(study, family, made)


def samples_pile(family: FamilyName) -> None:
    """Passages of the Pile that GPT-Neo is known to complete, and control text."""
    from pipeline.samples import pile

    study = load()
    entry = study.family(family)
    source = section(entry.samples, Pile)
    folder = Path(study.run.pile_folder) if study.run.pile_folder else None
    passages = pile.fetch(source.url, source.sha256, folder, cache=DOWNLOADS)
    known = pile.window(
        pile.memorized(passages, source.n_memorized, source.seed),
        entry.prefix_length,
        entry.suffix_length,
    )
    _write(study, family, _with_control(entry, source, known))


def samples_pythia(family: FamilyName) -> None:
    """Sequences that all of several Pythia models have memorized, and control text."""
    from pipeline.samples import pythia

    study = load()
    entry = study.family(family)
    source = section(entry.samples, Pythia)
    files = pythia.fetch(source.evals.repo, source.evals.commit, source.splits)
    known = pythia.window(
        pythia.memorized(files, source.n_memorized, source.seed),
        entry.prefix_length,
        entry.suffix_length,
    )
    _write(study, family, _with_control(entry, source, known))


def samples_inserted(family: FamilyName) -> None:
    """Texts that were inserted into the training data a known number of times."""
    from pipeline.samples import inserted

    study = load()
    entry = study.family(family)
    source = section(entry.samples, Inserted)
    made = inserted.fetch(
        *source.pins, entry.prefix_length, entry.suffix_length, source.memorized_copies
    )
    _write(study, family, made)


def samples_file(family: FamilyName) -> None:
    """A user's file."""
    from pipeline.checkpoints.verified import encoder, load_tokenizer
    from pipeline.samples.file import samples

    study = load()
    entry = study.family(family)
    source = section(entry.samples, File)
    owner = source.tokenizer and study.data / "checkpoints" / source.tokenizer
    made = samples(
        Path(source.path),
        encoder(load_tokenizer(owner)) if owner else None,
        entry.prefix_length,
        entry.suffix_length,
        skip_short=source.skip_short,
    )
    _write(study, family, made)


def _with_control(entry: Family, source: Pile | Pythia, known: NDArray[np.integer]) -> pl.DataFrame:
    from pipeline.samples import control
    from pipeline.samples.frame import with_control

    others = control.fetch(
        *source.control.pins, known.shape[1], source.control.n, source.seed, known
    )
    return with_control(known, others, entry.prefix_length)


def _write(study: Study, family: str, made: pl.DataFrame) -> None:
    from pipeline.workflow import tables

    entry = study.family(family)
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, determined_by(study.study, family=entry.described()))
