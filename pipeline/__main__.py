"""python -m pipeline COMMAND: collects the commands; every stage is a function of its room.

Every command checks params.yaml as a whole before it does anything.
"""

import os
import signal
import subprocess
import sys
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pipeline.stages import registry
from pipeline.study.composition import compose, derive, load
from pipeline.workflow.errors import InputError, bad_input, disk_problem, run_command, shorten
from pipeline.workflow.files import PARAMS
from pipeline.workflow.interruption import watch
from pipeline.workflow.progress import disable_monitor
from pipeline.workflow.schema import Dtype

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

# ------------------------------------------------------------------------------ the study in force


@app.command()
def init() -> None:
    """Write into this empty folder what a study needs: the package, and files of both engines."""
    from pipeline.study.project import init as write_project

    write_project(Path())
    print(
        "this folder is a project now. Commit it (git add --all; git commit), then: "
        "python -m pipeline plan; snakemake --cores all"
    )


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
    from pipeline.workflow.locks import held, take_turn

    take_turn()
    chosen = dict(choice.partition("=")[::2] for choice in choices or [])
    with held(PARAMS):
        made = compose({"study": name, **chosen}) if name else derive()
    print(f"{PARAMS} is now study {made.study}: {len(made.models)} models.")
    print(f"Next: python -m pipeline plan, which says what it costs; then {run_command()}")


@app.command()
def pin(name: Annotated[str, typer.Argument(help="of a study in pipeline/conf/study/")]) -> None:
    """Look up the commits of the branches that a study file names, and write them into it."""
    from pipeline.study.pins import pin as look_up

    print("\n".join(look_up(name)) or "every repository is at a whole commit already")


@app.command()
def versions() -> None:
    """Record the installed libraries: what was computed with others is then stale."""
    from pipeline.workflow.provenance import VERSIONS, write_versions

    write_versions()
    print(f"{VERSIONS} has the installed versions; see what is stale: dvc status")


@app.command()
def plan(
    check: Annotated[
        bool, typer.Option(help="only ask the hub, for listings, whether every pin is there")
    ] = False,
    on: Annotated[
        str | None, typer.Option(help="estimate for a100, h100 or slurm; default: this machine")
    ] = None,
) -> None:
    """Say what the study in force will fetch, compute and store, and what is done already."""
    from pipeline.plan import downloads
    from pipeline.workflow.dag import Dag

    if check:
        lines = downloads.check(load(), Dag(decide=False).stages.values())
        print("\n".join(lines or ["this study fetches nothing"]))
        return
    from pipeline.plan.table import plan as make_plan

    print(make_plan(load(), Dag(), on))


@app.command()
def where() -> None:
    """Print where the report lies."""
    print(f"the report: {(load().reports / 'index.html').resolve()}")


@app.command()
def crate(
    to: Annotated[
        Path | None, typer.Option(help="the zip to be made; default: STUDY.crate.zip")
    ] = None,
) -> None:
    """Write the study in force as a Workflow Run RO-Crate: provenance that other tools read."""
    from pipeline.study.crate import write_crate

    made = load()
    path = to or Path(f"{made.study}.crate.zip")
    write_crate(made, path)
    print(f"the crate: {path.resolve()}")


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="STUDY, or STUDY@REVISION of git")],
    after: Annotated[str, typer.Argument(help="the same; a change is after minus before")],
) -> None:
    """Show what changed between two studies, or two versions of one."""
    from pipeline.report.compare import read_sides, write_comparison

    sides = read_sides(before, after)
    folder = Path("reports") / f"compare-{sides[0].slug}-{sides[1].slug}"
    write_comparison(*sides, folder)
    print(f"the comparison: {(folder / 'index.html').resolve()}")


@app.command()
def audit(
    model: Annotated[
        str,
        typer.Option(help="a folder, or OWNER/NAME of the hub, at a commit or a branch: @COMMIT"),
    ],
    samples: Annotated[
        Path | None,
        typer.Option(help="parquet, JSON lines or CSV with `tokens` or `text`; or plain text"),
    ] = None,
    document: Annotated[
        Path | None, typer.Option(help="in place of samples: a text file, or a folder of them")
    ] = None,
    name: Annotated[str, typer.Option(help="of the report: reports/audit-NAME/")] = "model",
    prefix_length: Annotated[int, typer.Option(min=1, help="tokens")] = 32,
    suffix_length: Annotated[int, typer.Option(min=1, help="tokens")] = 32,
    tasks: Annotated[
        str | None,
        typer.Option(help="of lm-eval, such as arc_easy,piqa; or a folder of its YAML files"),
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
    stride: Annotated[
        int, typer.Option(min=1, max=2**16 - 1, help="tokens between windows of a document")
    ] = 8,
    edits: Annotated[
        str | None,
        typer.Option(
            help="a document is read under these too, such as block-02,quartile-4; "
            "none: samples are read by the unmodified model alone, which is quick"
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="a model that cannot know the document, or a text that this one cannot"),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="a text file, or a folder of them, in which its copies are counted"),
    ] = None,
) -> None:
    """Write a study of one's own checkpoint and samples, and run it."""
    options = dict(locals())
    from pipeline.plan.downloads import require_downloads
    from pipeline.study import audit as auditing
    from pipeline.study.pins import pinned
    from pipeline.workflow.dag import Dag, reproduce
    from pipeline.workflow.interruption import saying
    from pipeline.workflow.locks import held, take_turn

    if (samples is None) == (document is None):
        raise bad_input(
            "audit", "neither or both", "one of --samples and --document", "give one of them"
        )
    if samples and edits not in (None, auditing.NO_EDITS):
        raise bad_input(
            "--edits", shorten(edits), auditing.NO_EDITS, "name edits for a document alone"
        )
    if document:
        options["samples"] = auditing.longest(document, reference, corpus)
    known = auditing.commits_of(name)
    commits = {each: pinned(each, known.get(each)) for each in (model, reference) if each}
    parted = [word.rpartition("=") for word in sys.argv[1:]]  # --model=NAME is one word
    words = [option + equals + commits.get(value, value) for option, equals, value in parted]
    options |= {"model": commits[model], "reference": commits.get(reference or "")}
    asked = auditing.Asked(**options)
    values = auditing.study(asked, words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    with chdir(asked.folder):
        take_turn()
    auditing.prepare(asked, commits)
    page = (asked.shown[1] / ("document" if document else "") / "index.html").absolute()
    with chdir(asked.folder):
        with held(PARAMS):
            auditing.write_params(values)
        if values["datasets"]:  # before the first job
            dag, address = Dag(), f"datasets@{asked.study}"
            require_downloads(load(), [dag.stages[address]] if address in dag.changed else [])
        kept = "finished stages and shards are kept; the same command goes on from there"
        with saying(lambda: kept):
            reproduce(*[f"document@{asked.study}"] * (document is not None))
    print(f"the report: {page}\nagain: {auditing.command(words)}")


@app.command()
def export(
    to: Annotated[Path, typer.Option(help="the folder to be made")],
    model: Annotated[
        str | None,
        typer.Option(help="a folder, a model of the study, or OWNER/NAME@COMMIT of the hub"),
    ] = None,
    edit: Annotated[str | None, typer.Option(help="zero, mlp-zero, skip or identity")] = None,
    blocks: Annotated[str | None, typer.Option(help="such as 3,5; the first is 0")] = None,
    base_model: Annotated[str | None, typer.Option(help="OWNER/NAME, for the card")] = None,
    license: Annotated[str | None, typer.Option(help="such as mit, for the card")] = None,
    study: Annotated[str | None, typer.Option(help="in force, with mitigations")] = None,
    method: Annotated[str | None, typer.Option(help="one of its methods, such as kfac")] = None,
    dose: Annotated[float | None, typer.Option(help="of the method")] = None,
) -> None:
    """Write a checkpoint with an edit, or a mitigation, in its weights, for stock transformers."""
    of_method, of_edit = (study, method, dose), (model, edit, blocks, base_model, license)
    if model is not None and edit is not None and blocks is not None and of_method == (None,) * 3:
        from pipeline.study import export as exporting

        asked = {"base_model": base_model, "license": license}
        told = {field: value for field, value in asked.items() if value}
        differ = exporting.export(model, edit, blocks, to, **told)
        print(f"{to}: {edit} of blocks {blocks}; logits within {differ:.1e} of the edited model's")
        return
    in_force = load()
    if method is None or dose is None or study != in_force.study or any(of_edit):
        raise bad_input(
            "export",
            f"--study {study}, --method {method}, --dose {dose}; the study in force is "
            f"{in_force.study}",
            "--model, --edit and --blocks; or --study, which is in force, --method and --dose",
            "name either, and all of it; compose a study by: python -m pipeline study NAME",
        )
    from pipeline.study import mitigated

    mitigated.export(in_force, method, dose, to)
    print(f"{to}: {method} at {dose:g}; its card states what was measured")


@app.command()
def durability(
    model: Annotated[Path, typer.Option(help="folder of the edited checkpoint")],
    samples: Annotated[Path, typer.Option(help="as for audit; half of them is learned again")],
    before: Annotated[Path | None, typer.Option(help="the checkpoint before the edit")] = None,
    twin: Annotated[Path | None, typer.Option(help="one that never saw the samples")] = None,
    prefix_length: Annotated[int, typer.Option(min=2, help="tokens")] = 32,
    suffix_length: Annotated[int, typer.Option(min=2, help="tokens")] = 32,
    # 1e-3 ends what SmolLM2 recites without an edit
    learning_rate: Annotated[float, typer.Option(min=0, max=1, help="of relearning")] = 1e-4,
    steps: Annotated[int, typer.Option(min=1, help="of relearning")] = 50,
) -> None:
    """Try to get removed texts back: by sampling, rounding, relearning, and other prefixes."""
    import polars as pl

    from pipeline.mitigations.schema import Relearning
    from pipeline.study import mitigated

    lengths = prefix_length, suffix_length
    relearning = Relearning(learning_rate=learning_rate, steps=steps)
    found = mitigated.probe(model, samples, *lengths, relearning, before, twin)
    with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
        print(found)


@app.command()
def certify(
    model: Annotated[
        str, typer.Option(help="a folder, a model of the study, or OWNER/NAME@COMMIT of the hub")
    ],
    edit: Annotated[str, typer.Option(help="such as zero, or edits/mine.py:halve")],
) -> None:
    """Try an edit on a model, and print its certificate, or what failed."""
    from pipeline.study.certifying import certify as try_edit

    print(try_edit(model, edit))


@app.command(
    "lm_eval",
    context_settings={
        "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []
    },
)  # fmt: skip
def lm_eval(context: typer.Context) -> None:
    """Run lm-eval's own command line, with `--model bypass` for edited blocks."""
    from pipeline.tasks.lm_eval_model import run

    run(context.args)


@app.command()
def stage(
    address: Annotated[str, typer.Argument(envvar="DVC_STAGE", help="such as samples@tiny-world")],
) -> None:
    """Run a stage; DVC names it, so that no name has to pass through a shell."""
    from pipeline.workflow.inputs import held_still
    from pipeline.workflow.provenance import require_versions

    study = load()
    require_versions()
    # what is run by hand is not recorded by DVC, so its inputs may change
    with held_still(address) if "DVC_STAGE" in os.environ else nullcontext():
        registry.run(study, address)


@app.command()
def partial() -> None:
    """Make a page of what ran: leave out what failed or has not run; the page says what."""
    study = load()
    registry.run(study, f"aggregate@{study.study}", partial=True)
    for group in ("figures", "report"):
        registry.run(study, f"{group}@{study.study}")


def installed() -> None:
    """The command `bypass-memorization`: in a project's folder, the code of that project."""
    if not Path("pipeline/__main__.py").is_file():
        main()
        return
    with subprocess.Popen([sys.executable, "-m", "pipeline", *sys.argv[1:]]) as child:  # noqa: S603 - this Python, without a shell
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both
        signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        sys.exit(child.wait())


def main() -> None:
    """Run a command; what a user can mend ends in its description, not in a traceback."""
    watch()
    disable_monitor()
    try:
        app(prog_name="python -m pipeline")
    except (InputError, OSError) as error:
        problem = disk_problem(error)
        if isinstance(error, OSError) and problem is None:
            raise
        print(InputError(problem) if problem else error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
