"""python -m pipeline COMMAND: parse, read, call, write; no logic.

Every command checks params.yaml as a whole before it does anything. Each imports what it needs
itself, so that the modules which a stage depends on can be read off its function; dvc.yaml lists
them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from pipeline.errors import InputError
from pipeline.params import PARAMS, RUN_SECTION, Study, compose, load

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
samples_app = typer.Typer(help="Make the samples of one family.", no_args_is_help=True)
checkpoint_app = typer.Typer(help="Get the weights of one model.", no_args_is_help=True)
app.add_typer(samples_app, name="samples")
app.add_typer(checkpoint_app, name="checkpoint")

FamilyName = Annotated[str, typer.Argument(help="name of a family of the study")]
ModelName = Annotated[str, typer.Argument(help="name of a model of the study")]


# ------------------------------------------------------------------------------ the study in force


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="a file of pipeline/conf/study/")],
    choices: Annotated[
        list[str] | None, typer.Argument(help="GROUP=OPTION of pipeline/conf/, such as seeds=three")
    ] = None,
) -> None:
    """Compose params.yaml for a study."""
    chosen = dict(choice.partition("=")[::2] for choice in choices or [])
    made = compose({"study": name, **chosen})
    print(f"{PARAMS} is now study {made.study}: {len(made.models)} models. Next: make run")


@app.command()
def accept() -> None:
    """Accept edits of comments, docstrings and layout without running the stages again."""
    from pipeline.accept import accept as accept_edits

    load()
    accepted = accept_edits()
    print("\n".join(f"accepted {address}" for address in accepted) or "nothing is stale")


@app.command()
def where() -> None:
    """Print where the report lies."""
    print(f"the report: {(load().reports / 'index.html').resolve()}")


# ------------------------------------------------------------------------------ stages


@app.command()
def check() -> None:
    """Check params.yaml."""
    from pipeline.files import write_json

    study = load()
    write_json(study.data / "study.json", {"study": study.study})


@app.command()
def corpus() -> None:
    """Generate the text world, the records planted in it, and the held-out benchmark tasks."""
    from pipeline.samples.corpus import generate, write

    study = load()
    recipe = study.corpus[study.study].model_dump()
    with _costed(study, "corpus", study.study):
        write(
            generate(**recipe),
            study.data / "corpus",
            study.data / "tasks",
            _determined_by(study, corpus=recipe),
        )


@samples_app.command("records")
def samples_records(family: FamilyName) -> None:
    """From the records of the generated corpus."""
    from pipeline import tables
    from pipeline.samples.records import samples

    study = load()
    entry = study.family(family)
    records = tables.read(study.data / "corpus" / "records.parquet", tables.RECORDS)
    planted = entry.memorized_copies or 1  # the check has seen that it is given
    made = samples(records, entry.prefix_length, entry.suffix_length, planted)
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, _determined_by(study, family=entry.model_dump()))


@samples_app.command("pile")
def samples_pile(family: FamilyName) -> None:
    """The 15,000 passages of the Pile that GPT-Neo is known to complete."""
    from pathlib import Path

    from pipeline import tables
    from pipeline.samples.pile import fetch, samples

    study = load()
    entry = study.family(family)
    folder = Path(study.run.pile_folder) if study.run.pile_folder else None
    passages = fetch(folder, cache=Path("data/downloads"))
    made = samples(passages, entry.prefix_length, entry.suffix_length)
    path = study.data / "samples" / f"{family}.parquet"
    tables.write(made, path, tables.SAMPLES, _determined_by(study, family=entry.model_dump()))


@checkpoint_app.command("training")
def checkpoint_training(model: ModelName) -> None:
    """Train a small model from scratch on the generated corpus."""
    from pipeline import tables
    from pipeline.checkpoints.training import Recipe, train, write_checkpoint

    study = load()
    entry = study.model(model)
    corpus = study.data / "corpus"
    recipe = Recipe(seed=entry.seed, **entry.training.model_dump())
    rows = tables.read(corpus / "rows.parquet", tables.TRAINING_ROWS)
    with _costed(study, "checkpoint", model):
        trained = train(recipe, rows, corpus / "tokenizer")
        write_checkpoint(
            study.data / "checkpoints" / model, trained, recipe, name=model, family=entry.family
        )


@app.command()
def memorization(model: ModelName) -> None:
    """Complete every sample of the model's family under every intervention."""
    from pipeline import tables
    from pipeline.bypass.interventions import sweep
    from pipeline.bypass.memory import Journal
    from pipeline.checkpoints.manifest import load_model, read_manifest
    from pipeline.measure.memorization import measure
    from pipeline.progress import reporter

    study = load()
    entry = study.model(model)
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    samples = tables.read(study.data / "samples" / f"{entry.family}.parquet", tables.SAMPLES)
    journal = Journal()
    with (
        _costed(study, "memorization", model, journal) as notes,
        _evaluating(study, notes) as device,
    ):
        made = measure(
            load_model(folder, study.evaluation.dtype, device),
            samples,
            sweep(manifest.n_blocks),
            study.run.token_budget,
            reporter(f"memorization of {model}", "samples"),
            journal,
        )
    path = study.data / "memorization" / f"{model}.parquet"
    provenance = _determined_by(
        study, checkpoint=dict(manifest.files), evaluation=study.evaluation.model_dump()
    )
    tables.write(made, path, tables.MEMORIZATION, {"model": model, **provenance})


@app.command()
def benchmarks(model: ModelName) -> None:
    """Evaluate every benchmark task under every intervention."""
    from pipeline import tables
    from pipeline.bypass.interventions import sweep
    from pipeline.bypass.memory import Journal
    from pipeline.checkpoints.manifest import load_model, load_tokenizer, read_manifest
    from pipeline.measure.benchmarks import load_tasks, measure
    from pipeline.progress import reporter

    study = load()
    folder = study.data / "checkpoints" / model
    manifest = read_manifest(folder)
    wanted = study.benchmarks
    tasks = load_tasks(wanted.tasks, study.data / "tasks", wanted.num_fewshot)
    journal = Journal()
    with _costed(study, "benchmarks", model, journal) as notes, _evaluating(study, notes) as device:
        made, documents = measure(
            load_model(folder, study.evaluation.dtype, device),
            load_tokenizer(folder),
            tasks,
            sweep(manifest.n_blocks),
            study.run.token_budget,
            wanted.limit,
            reporter(f"benchmarks of {model}", "contexts"),
            journal,
        )
    provenance = _determined_by(
        study,
        model=model,
        checkpoint=dict(manifest.files),
        evaluation=study.evaluation.model_dump(),
        benchmarks=wanted.model_dump(),
    )
    below = study.data / "benchmarks"
    tables.write(
        documents,
        below / f"{model}.documents.parquet",
        tables.BENCHMARK_DOCUMENTS,
        provenance,
    )
    tables.write(made, below / f"{model}.parquet", tables.BENCHMARKS, provenance)


@app.command()
def aggregate() -> None:
    """Put every number that the report shows, with its interval, into one table."""
    from pipeline.report.aggregate import write_summary

    study = load()
    models = [(model.name, model.family) for model in study.models.values()]
    path = study.data / "summary.parquet"
    write_summary(study.study, models, study.data, path, study.statistics.seed)


@app.command()
def figures() -> None:
    """Draw every figure."""
    from pipeline.report.figures import write_figures

    study = load()
    write_figures(study.data / "summary.parquet", study.reports / "figures")


@app.command()
def report() -> None:
    """Write the page."""
    from pipeline import tables
    from pipeline.report.page import write_page

    study = load()
    measured_with = tables.provenance(study.data / "summary.parquet").get("versions", {})
    write_page(
        study.study,
        [(model.name, model.family) for model in study.models.values()],
        study.data,
        study.reports / "figures",
        study.reports / "index.html",
        study.reports / "tables",
        {
            "study": study.study,
            "params": study.model_dump(exclude={RUN_SECTION}),
            "versions": measured_with,
            "commands": [f"make run STUDY={study.study}", f"dvc repro report@{study.study}"],
        },
    )


# ------------------------------------------------------------------------------ shared


def _determined_by(study: Study, **what: object) -> dict[str, object]:
    """What determines a table: the study, the given parts of it, the versions that compute."""
    from pipeline.provenance import versions

    return {"study": study.study, **what, "versions": versions()}


@contextmanager
def _costed(
    study: Study, stage: str, name: str, journal: object = None
) -> Iterator[dict[str, Any]]:
    """Write what the enclosed work cost, its notes, and what its journal (a dataclass) says."""
    from pipeline.provenance import cost

    with cost(study.data / "cost" / stage / f"{name}.json") as notes:
        yield notes
        notes["events"] = vars(journal) if journal else {}


@contextmanager
def _evaluating(study: Study, notes: dict[str, Any]) -> Iterator[str]:
    """Lease a device and set the threads, before torch is asked for either."""
    from pipeline.device import lease

    with lease() as leased:
        os.environ["OMP_NUM_THREADS"] = str(study.run.threads)
        import torch

        device = leased if leased == "cpu" or torch.cuda.is_available() else "cpu"
        if device != leased:
            print("a GPU is there, but this torch cannot use it: evaluating on the CPU", flush=True)
        torch.set_num_threads(study.run.threads)
        notes.update(device=device, threads=study.run.threads)
        yield device


def main() -> None:
    """Run a command; a user's mistake ends in its description, not in a traceback."""
    try:
        app(prog_name="python -m pipeline")
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
