"""The stages that make the samples of a family, one function for each source."""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.corpus.schemas import RECORDS
from pipeline.samples.frame import window, with_control
from pipeline.samples.schema import PASSAGE_LENGTHS, Family, File, Inserted, Pile, Pythia, Records
from pipeline.samples.schemas import SAMPLES, samples_file
from pipeline.study.schema import Study, section
from pipeline.workflow import tables
from pipeline.workflow.running import DOWNLOADS, determined_by


def records(study: Study, family: Family) -> None:
    """From the records of the generated corpus."""
    from pipeline.samples.records import samples

    planted = tables.read(study.data / "corpus" / "records.parquet", RECORDS)
    copies = section(family.samples, Records).memorized_copies
    _write(study, family, samples(planted, family.prefix_length, family.suffix_length, copies))


def pile(study: Study, family: Family) -> None:
    """Passages of the Pile that GPT-Neo is known to complete, and control text."""
    from pipeline.samples import pile

    source = section(family.samples, Pile)
    folder = Path(study.run.pile_folder) if study.run.pile_folder else None
    passages = pile.fetch_passages(source.url, source.sha256, folder, cache=DOWNLOADS)
    memorized = pile.memorized(passages, source.n_memorized, source.seed)
    _write(study, family, _with_control(family, source, memorized))


def pythia(study: Study, family: Family) -> None:
    """Sequences that all of several Pythia models have memorized, and control text."""
    from pipeline.samples import pythia

    source = section(family.samples, Pythia)
    files = pythia.fetch_splits(*source.evals.pin, source.splits)
    memorized = pythia.memorized(files, source.n_memorized, source.seed)
    _write(study, family, _with_control(family, source, memorized))


def inserted(study: Study, family: Family) -> None:
    """Texts that were inserted into the training data a known number of times."""
    from pipeline.samples.inserted import samples

    source = section(family.samples, Inserted)
    asked = family.prefix_length, family.suffix_length, source.memorized_copies
    _write(study, family, samples(source.texts.pin, source.tokenizer.pin, *asked))


def file(study: Study, family: Family) -> None:
    """A user's file."""
    from pipeline.checkpoints.verified import load_tokenizer
    from pipeline.samples.file import samples

    source, lengths = section(family.samples, File), (family.prefix_length, family.suffix_length)
    owner = source.tokenizer and study.checkpoint(source.tokenizer)
    tokenizer = load_tokenizer(owner) if owner else None
    made = samples(Path(source.path), tokenizer, *lengths, skip_short=source.skip_short)
    _write(study, family, made)


def _with_control(
    family: Family, source: Pile | Pythia, passages: NDArray[np.integer]
) -> pl.DataFrame:
    """The samples cut from memorized passages, and as long windows of control text."""
    from pipeline.samples.control import control_windows

    lengths = family.prefix_length, family.suffix_length
    memorized = window(passages, PASSAGE_LENGTHS[source.source][0], *lengths)
    control, length = source.control, memorized.shape[1]
    pins = control.documents.pin, control.tokenizer.pin
    others = control_windows(*pins, length, control.n, source.seed, memorized)
    return with_control(memorized, others, family.prefix_length)


def _write(study: Study, family: Family, made: pl.DataFrame) -> None:
    path = samples_file(study.data, family.name)
    tables.write(made, path, SAMPLES, determined_by(study.study, family=family.described()))
