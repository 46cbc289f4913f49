"""Snakemake and DVC see one DAG, and agree on what has to run."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.dag.conftest import ROOT, Project
from tests.project import GIT

pytestmark = pytest.mark.slow

MODELS = ("mini-p-1_4b", "mini-n-2_7b")
EVALUATION = {
    f"{group}@{model}"
    for group in ("memorization", "tokens", "benchmarks", "generations", "divergence")
    for model in MODELS
}
SUMMARY = {"check_results@mini", "aggregate@mini", "figures@mini", "report@mini"}
ALL = {
    *("check@mini", "corpus@mini", "samples@mini-pythia", "samples@mini-gpt-neo"),
    *(f"{group}@{model}" for group in ("checkpoint", "interventions") for model in MODELS),
    *EVALUATION,
    "theory@mini-low-rank",
    *SUMMARY,
}
PYTHIA = {stage for stage in ALL if stage.endswith("p-1_4b")}

# what is edited in params.yaml -> the commands that have to run
PARAMS = {
    "one family's precision": (
        "evaluation:\n  pythia:\n    dtype: float32",
        "evaluation:\n  pythia:\n    dtype: float16",
        {"check@mini"} | EVALUATION & PYTHIA | SUMMARY,
    ),
    "the length of what is generated": (
        "  new_tokens: 1",
        "  new_tokens: 2",
        {"check@mini", "generations@mini-p-1_4b", "generations@mini-n-2_7b", "report@mini"},
    ),
    "what is decoded of one family": (
        "below_floor: warn\n    decode: all\n  gpt-neo",
        "below_floor: warn\n    decode: 64\n  gpt-neo",
        {"check@mini", "memorization@mini-p-1_4b"} | SUMMARY,
    ),
    "one more intervention": (
        "interventions:\n",
        "interventions:\n- blocks: each\n  edit: zero\n",
        {"check@mini"}
        | {stage for stage in ALL if stage.startswith(("interv", "mem", "tokens", "bench"))}
        | SUMMARY,
    ),
    "statistics.seed": (
        "statistics:\n  seed: 0",
        "statistics:\n  seed: 1",
        {"check@mini", "aggregate@mini", "figures@mini", "report@mini"},
    ),
    "run.token_budget": ("  token_budget: null", "  token_budget: 32", set()),
    "run.shard_minutes": ("  shard_minutes: 1", "  shard_minutes: 0.1", set()),
    "the corpus": (
        "corpus:\n  mini:\n    seed: 0",
        "corpus:\n  mini:\n    seed: 1",
        ALL - {"theory@mini-low-rank"},
    ),
    "one model's recipe": (
        "family: pythia\n    checkpoint:\n      source: training\n      seed: 0",
        "family: pythia\n    checkpoint:\n      source: training\n      seed: 5",
        {"check@mini"} | PYTHIA | SUMMARY,
    ),
    "one family's split": (
        "    name: gpt-neo\n    prefix_length: 32",
        "    name: gpt-neo\n    prefix_length: 31",
        {
            "check@mini",
            "samples@mini-gpt-neo",
            "memorization@mini-n-2_7b",
            "tokens@mini-n-2_7b",
            "divergence@mini-n-2_7b",
        }
        | SUMMARY,
    ),
}


def test_everything_runs_once_eight_at_once(finished: Project) -> None:
    ran = (finished.root / "ran.txt").read_text().split()
    assert sorted(ran) == sorted(ALL)


def test_both_engines_see_one_dag(project: Project) -> None:
    described = project.describe()
    first = set(described.pop("check@mini")["outs"])  # type: ignore[call-overload]
    dry = project.snakemake("-n", "--forceall")
    jobs = re.findall(r"^    input: (.*)\n    output: (.*)$", dry.stdout + dry.stderr, re.M)
    made, read = {}, {}
    for inputs, outputs in jobs:
        marks = [i for i in inputs.split(", ") if i.startswith(".snakemake/")]
        assert len(marks) == 1
        stage = Path(marks[0]).name
        made[stage] = set(outputs.split(", "))
        read[stage] = set(inputs.split(", ")) - set(marks)
    assert made == {name: set(stage["outs"]) for name, stage in described.items()}
    outs = {out for stage in described.values() for out in stage["outs"]}
    for name, stage in described.items():
        expected = set()
        for dep in stage["deps"]:
            within = {out for out in outs if out.startswith(f"{dep}/")}
            expected |= {dep} if dep in outs or not within else within
        assert read[name] == expected - first


def test_after_dvc_snakemake_is_idle(fresh: Project) -> None:
    fresh.dvc("repro")
    assert set(fresh.ran()) == ALL
    fresh.assert_idle()


@pytest.mark.parametrize(
    ("edit", "engine"),
    # under snakemake each stage is run by DVC, so more edits under DVC alone would show no more
    [*((edit, "snakemake") for edit in PARAMS), ("one family's precision", "dvc")],
)
def test_a_changed_param_runs_exactly_what_depends_on_it(
    project: Project, edit: str, engine: str
) -> None:
    old, new, expected = PARAMS[edit]
    project.replace("params.yaml", old, new)
    project.run(engine)
    ran = project.ran()
    assert set(ran) == expected
    assert all(times == 1 for times in ran.values())


def test_a_mean_over_samples_leads_from_them_to_the_benchmarks(project: Project) -> None:
    mean = "interventions:\n- blocks: each\n  edit: mean\n"
    project.replace("params.yaml", "interventions:\n", mean)
    project.derive()
    deps = {name: stage["deps"] for name, stage in project.describe().items()}
    assert "data/mini/samples/gpt-neo.parquet" in deps["benchmarks@mini-n-2_7b"]
    assert "data/mini/samples/gpt-neo.parquet" not in deps["generations@mini-n-2_7b"]


def test_two_jobs_a_model(project: Project) -> None:
    project.replace("params.yaml", "\nparts: 1\n", "\nparts: 2\n")
    project.derive()
    project.describe()
    project.snakemake()
    whole = {stage for stage in ALL if stage.startswith(("memorization", "benchmarks"))}
    parts = {f"{stage}-{n}-of-2".replace("@", "_part@") for stage in whole for n in (1, 2)}
    assert set(project.ran()) == {"check@mini"} | parts | whole | SUMMARY
    project.assert_idle()


def test_another_torch_makes_stale_what_torch_computes(project: Project) -> None:
    project.replace("pipeline/versions.yaml", "torch: ", "torch: 9.")
    refused = project.snakemake(check=False)
    assert refused.returncode != 0
    assert "python -m pipeline versions" in refused.stdout + refused.stderr
    project.dvc("repro")
    theory = {stage for stage in ALL if stage.startswith(("checkpoint", "theory"))}
    assert set(project.ran()) == EVALUATION | theory


@pytest.mark.parametrize("engine", ["snakemake", "dvc"])
def test_wording_makes_nothing_stale(project: Project, engine: str) -> None:
    project.replace("pipeline/measure/metrics.py", "from __future__", "# why\nfrom __future__")
    project.replace("pipeline/workflow/errors.py", "remedy:   {", "what to do: {")
    assert "Nothing to be done" in project.planned()
    project.run(engine)
    project.assert_idle()


@pytest.mark.parametrize("option", ["--lint", "--dag", "--list-rules", "--summary", "-n"])
def test_what_only_looks_changes_nothing(project: Project, option: str) -> None:
    """The study calls for another loops.yaml, and the code for another digest."""
    params = (project.root / "params.yaml").read_text()
    (project.root / "params.yaml").write_text(
        re.sub(r"^divergence:\n(  .*\n)+", "divergence: null\n", params, flags=re.M)
    )
    with (project.root / "pipeline/measure/memorization.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    files = ("params.yaml", "loops.yaml", "dvc.lock", "data/code.yaml")
    before = {name: (project.root / name).read_bytes() for name in files}
    assert before["params.yaml"] != params.encode()
    project.snakemake(option, check=False)
    assert {name: (project.root / name).read_bytes() for name in files} == before


def test_dvc_keeps_an_earlier_table_while_its_stage_runs(project: Project) -> None:
    """Until the stage has ended, dvc.lock names what it made before, whose file is gone."""
    path = "data/mini/memorization/p-1.4b.parquet"
    before = (project.root / path).read_text()
    main = project.root / "pipeline" / "__main__.py"
    main.write_text(
        "import os\nfrom pathlib import Path\nfrom pipeline.workflow.dag import cached\n"
        f"if os.environ['DVC_STAGE'] == 'memorization@mini-p-1_4b':\n    path = '{path}'\n"
        "    assert not Path(path).exists() and cached('memorization@none', path) is None\n"
        "    Path('found.txt').write_text(cached(os.environ['DVC_STAGE'], path).read_text())\n"
        + main.read_text()
    )
    old, new, _ = PARAMS["one family's precision"]
    project.replace("params.yaml", old, new)
    project.snakemake()
    assert (project.root / "found.txt").read_text() == before
    assert (project.root / path).read_text() != before


def test_a_check_that_passes_again_leads_to_no_job(project: Project) -> None:
    """Every stage needs it, and none reads more of it than that it passed."""
    project.replace("params.yaml", "show_text: false", "show_text: true")
    counted = re.findall(r"^(\w+) +\d+$", project.planned(), re.M)
    assert set(counted) == {"report", "all", "total"}


def test_a_changed_module_runs_exactly_what_imports_it(project: Project) -> None:
    with (project.root / "pipeline/measure/memorization.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    project.snakemake()  # the stubs' outputs do not depend on the code: nothing below has to run
    assert set(project.ran()) == {"memorization@mini-p-1_4b", "memorization@mini-n-2_7b"}
    project.assert_idle()


@pytest.mark.parametrize("engine", ["snakemake", "dvc"])
def test_deleted_outputs_come_back_without_running(project: Project, engine: str) -> None:
    before = (project.root / "reports/mini/index.html").read_text()
    shutil.rmtree(project.root / "data")
    shutil.rmtree(project.root / "reports")
    project.run(engine)
    assert set(project.ran()) <= {"check@mini"}  # DVC restores no output that persists
    assert (project.root / "reports/mini/index.html").read_text() == before
    project.assert_idle()


def _touched(project: Project) -> None:
    """As if all files but DVC's and git's own had been written tomorrow, or in 1970."""
    for number, file in enumerate(sorted(project.root.rglob("*"))):
        if not {".dvc", ".git", ".snakemake"} & set(file.relative_to(project.root).parts):
            os.utime(file, (time.time() + 86400,) * 2 if number % 2 else (1, 1))


def _another_branch_and_back(project: Project) -> None:
    project.command("git", "checkout", "--quiet", "-b", "other")
    for file in ("pipeline/measure/memorization.py", "params.yaml", "dvc.yaml"):
        (project.root / file).write_text("other")
    project.command(*GIT, "commit", "--quiet", "--all", "-m", "other")
    project.command("git", "checkout", "--quiet", "-")


def _data_elsewhere(project: Project) -> None:
    elsewhere = project.root.parent / "elsewhere"
    (project.root / "data").rename(elsewhere)
    (project.root / "data").symlink_to(elsewhere)


def _links_to_the_cache(project: Project) -> None:
    project.dvc("config", "--local", "cache.type", "symlink")
    project.dvc("checkout", "--relink")
    assert (project.root / "data/mini/summary.parquet").is_symlink()


@pytest.mark.parametrize(
    "change", [_touched, _another_branch_and_back, _data_elsewhere, _links_to_the_cache]
)
def test_what_changes_no_content_runs_nothing(
    project: Project, change: Callable[[Project], None]
) -> None:
    """The project itself is a copy at another path than it ran in."""
    change(project)
    project.assert_idle()


def test_a_dropped_model_is_gone(project: Project) -> None:
    params = project.root / "params.yaml"
    yaml = YAML()
    values = yaml.load(params)
    del values["models"]["mini-n-2_7b"]
    yaml.dump(values, params)
    project.snakemake()
    assert set(project.ran()) == {"check@mini"} | SUMMARY
    assert "memorization@mini-n-2_7b" not in project.describe()
    project.assert_idle()


def test_studies_are_switched_and_kept_apart(project: Project) -> None:
    refused = project.snakemake("--config", "study=other", "-n", check=False)
    assert "python -m pipeline study other" in refused.stdout + refused.stderr
    assert "study: mini" in (project.root / "params.yaml").read_text(), "a dry run changes nothing"
    project.compose("other")
    project.describe()
    project.command("git", "checkout", "--", "params.yaml")
    project.snakemake("--config", "study=other")
    other = {stage.replace("mini", "other") for stage in ALL}
    assert set(project.ran()) == other
    assert "study: other" in (project.root / "params.yaml").read_text()
    project.assert_idle()
    lock = YAML(typ="safe").load(project.root / "dvc.lock")
    assert set(lock["stages"]) == {"code"} | ALL | other
    # back by DVC's own way: nothing runs, for the first study is still in the lock
    project.command("git", "add", "--all")
    project.command(*GIT, "commit", "-qm", "x")
    project.dvc("exp", "run", "-S", "study=mini")
    assert set(project.ran()) <= {"check@mini"}
    assert "study: mini" in (project.root / "params.yaml").read_text()
    assert "Nothing to be done" in project.planned()
    project.describe()  # what the stubs read
    project.dvc("exp", "run", "-S", "evaluation.pythia.decode=64")
    assert set(project.ran()) - {"check@mini"} == {"memorization@mini-p-1_4b"} | SUMMARY


def test_every_rule_is_described(project: Project) -> None:
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    described = {name: stage["do"]["desc"] for name, stage in stages.items() if "do" in stage}
    del described["check"]
    rules = re.findall(r"^(\w+) \((.*)\)$", project.snakemake("--list-rules").stdout, re.M)
    assert dict(rules) == described


def test_tables_that_no_stage_writes_are_removed(project: Project) -> None:
    """Those of a section or a model that the study had before; the page would show them."""
    data = project.root / "data/mini"
    before = {path for path in data.rglob("*") if path.is_file()}
    left = [data / name for name in ("localization.parquet", "theory/lookup.parquet")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("1")
    script = "from pipeline.stages.check import check; from pipeline.study.composition import load;"
    project.command(sys.executable, "-c", f"{script} check(load())")
    assert {path for path in data.rglob("*") if path.is_file()} == before
