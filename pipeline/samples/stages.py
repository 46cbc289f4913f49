"""The stages that make the samples of a family.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.samples.schema import File, Inserted, Pile, Pythia, Records
from pipeline.study.composition import load
from pipeline.study.schema import section
from pipeline.workflow.running import DOWNLOADS, FamilyName, determined_by


def samples_records(family: FamilyName) -> None:
    """From the records of the generated corpus."""
    from pipeline.samples.records import samples
    from pipeline.workflow import tables

    study = load()
    entry = study.family(family)
    records = tables.read(study.data / "corpus" / "records.parquet", tables.RECORDS)
    planted = section(entry.samples, Records).memorized_copies
    made = samples(records, entry.prefix_length, entry.suffix_length, planted)
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, determined_by(study.study, family=entry.described()))


def samples_pile(family: FamilyName) -> None:
    """Passages of the Pile that GPT-Neo is known to complete, and control text."""
    from pipeline.samples import control, pile
    from pipeline.samples.frame import with_control
    from pipeline.workflow import tables

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
    others = control.fetch(
        *source.control.pins, known.shape[1], source.control.n, source.seed, known
    )
    path = study.data / "samples" / f"{family}.parquet"
    made = with_control(known, others, entry.prefix_length)
    tables.write(made, path, tables.SAMPLES, determined_by(study.study, family=entry.described()))


def samples_pythia(family: FamilyName) -> None:
    """Sequences that all of several Pythia models have memorized, and control text."""
    from pipeline.samples import control, pythia
    from pipeline.samples.frame import with_control
    from pipeline.workflow import tables

    study = load()
    entry = study.family(family)
    source = section(entry.samples, Pythia)
    files = pythia.fetch(source.evals.repo, source.evals.commit, source.splits)
    known = pythia.window(
        pythia.memorized(files, source.n_memorized, source.seed),
        entry.prefix_length,
        entry.suffix_length,
    )
    others = control.fetch(
        *source.control.pins, known.shape[1], source.control.n, source.seed, known
    )
    path = study.data / "samples" / f"{family}.parquet"
    made = with_control(known, others, entry.prefix_length)
    tables.write(made, path, tables.SAMPLES, determined_by(study.study, family=entry.described()))


def samples_inserted(family: FamilyName) -> None:
    """Texts that were inserted into the training data a known number of times."""
    from pipeline.samples import inserted
    from pipeline.workflow import tables

    study = load()
    entry = study.family(family)
    source = section(entry.samples, Inserted)
    made = inserted.fetch(
        *source.pins, entry.prefix_length, entry.suffix_length, source.memorized_copies
    )
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, determined_by(study.study, family=entry.described()))


def samples_file(family: FamilyName) -> None:
    """A user's file."""
    from pipeline.checkpoints.verified import encoder, load_tokenizer
    from pipeline.samples.file import samples
    from pipeline.workflow import tables

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
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, determined_by(study.study, family=entry.described()))
