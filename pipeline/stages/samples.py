"""The stages that make the samples of a family, one function for each source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.samples.schema import Family, File, Inserted, Pile, Pythia, Records
from pipeline.study.schema import Study, section
from pipeline.workflow.running import DOWNLOADS, determined_by

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


def records(study: Study, family: Family) -> None:
    """From the records of the generated corpus."""
    from pipeline.samples.records import samples
    from pipeline.workflow import tables

    planted = tables.read(study.data / "corpus" / "records.parquet", tables.RECORDS)
    copies = section(family.samples, Records).memorized_copies
    _write(study, family, samples(planted, family.prefix_length, family.suffix_length, copies))


def pile(study: Study, family: Family) -> None:
    """Passages of the Pile that GPT-Neo is known to complete, and control text."""
    from pipeline.samples import pile

    source = section(family.samples, Pile)
    folder = Path(study.run.pile_folder) if study.run.pile_folder else None
    passages = pile.fetch(source.url, source.sha256, folder, cache=DOWNLOADS)
    memorized = pile.memorized(passages, source.n_memorized, source.seed)
    known = pile.window(memorized, family.prefix_length, family.suffix_length)
    _write(study, family, _with_control(family, source, known))


def pythia(study: Study, family: Family) -> None:
    """Sequences that all of several Pythia models have memorized, and control text."""
    from pipeline.samples import pythia

    source = section(family.samples, Pythia)
    files = pythia.fetch(source.evals.repo, source.evals.commit, source.splits)
    memorized = pythia.memorized(files, source.n_memorized, source.seed)
    known = pythia.window(memorized, family.prefix_length, family.suffix_length)
    _write(study, family, _with_control(family, source, known))


def inserted(study: Study, family: Family) -> None:
    """Texts that were inserted into the training data a known number of times."""
    from pipeline.samples import inserted

    source = section(family.samples, Inserted)
    made = inserted.fetch(
        *source.pins, family.prefix_length, family.suffix_length, source.memorized_copies
    )
    _write(study, family, made)


def file(study: Study, family: Family) -> None:
    """A user's file."""
    from pipeline.checkpoints.verified import encoder, load_tokenizer
    from pipeline.samples.file import samples

    source = section(family.samples, File)
    owner = source.tokenizer and study.data / "checkpoints" / source.tokenizer
    made = samples(
        Path(source.path),
        encoder(load_tokenizer(owner)) if owner else None,
        family.prefix_length,
        family.suffix_length,
        skip_short=source.skip_short,
    )
    _write(study, family, made)


def _with_control(
    family: Family, source: Pile | Pythia, known: NDArray[np.integer]
) -> pl.DataFrame:
    from pipeline.samples import control
    from pipeline.samples.frame import with_control

    others = control.fetch(
        *source.control.pins, known.shape[1], source.control.n, source.seed, known
    )
    return with_control(known, others, family.prefix_length)


def _write(study: Study, family: Family, made: pl.DataFrame) -> None:
    from pipeline.samples.schemas import SAMPLES
    from pipeline.workflow import tables

    path = study.data / "samples" / f"{family.name}.parquet"
    provenance = determined_by(study.study, family=family.described())
    tables.write(made, path, SAMPLES, provenance)
