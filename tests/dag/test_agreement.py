"""Snakemake and DVC see one DAG, and agree on what has to run."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.dag.conftest import Project
from tests.project import GIT, ROOT

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


def stages(*starts: str) -> set[str]:
    return {stage for stage in ALL if stage.startswith(starts)}


# what is set in params.yaml -> its value, and the commands that have to run
PARAMS: dict[str, tuple[object, set[str]]] = {
    "evaluation.pythia.dtype": ("float16", {"check@mini"} | EVALUATION & PYTHIA | SUMMARY),
    "generations.new_tokens": (2, stages("check@", "generations", "report")),
    "evaluation.pythia.decode": (64, {"check@mini", "memorization@mini-p-1_4b"} | SUMMARY),
    "interventions": (
        [{"blocks": "each", "edit": "zero"}],
        stages("check@", "interventions", "memorization", "tokens", "benchmarks") | SUMMARY,
    ),
    "statistics.seed": (1, stages("check@", "aggregate", "figures", "report")),
    "run": ({"token_budget": 32, "shard_minutes": 0.1}, set()),
    "corpus.mini.seed": (1, ALL - {"theory@mini-low-rank"}),
    "models.mini-p-1_4b.checkpoint.seed": (5, {"check@mini"} | PYTHIA | SUMMARY),
    "families.mini-gpt-neo.prefix_length": (
        31,
        {"check@mini", "samples@mini-gpt-neo"}
        | stages("memorization@mini-n", "tokens@mini-n", "divergence@mini-n")
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
    ("key", "engine"),
    # under snakemake each stage is run by DVC, so more edits under DVC alone would show no more
    [*((key, "snakemake") for key in PARAMS), ("evaluation.pythia.dtype", "dvc")],
)
def test_a_changed_param_runs_exactly_what_depends_on_it(
    project: Project, key: str, engine: str
) -> None:
    value, expected = PARAMS[key]
    project.set(key, value)
    project.run(engine)
    ran = project.ran()
    assert set(ran) == expected
    assert all(times == 1 for times in ran.values())


def test_a_mean_over_samples_leads_from_them_to_the_benchmarks(project: Project) -> None:
    project.set("interventions", [{"blocks": "each", "edit": "mean"}])
    project.derive()
    deps = {name: stage["deps"] for name, stage in project.describe().items()}
    assert "data/mini/samples/gpt-neo.parquet" in deps["benchmarks@mini-n-2_7b"]
    assert "data/mini/samples/gpt-neo.parquet" not in deps["generations@mini-n-2_7b"]


def test_two_jobs_a_model(project: Project) -> None:
    project.set("parts", 2)
    project.derive()
    project.describe()
    project.snakemake()
    whole = stages("memorization", "benchmarks")
    parts = {f"{stage}-{n}-of-2".replace("@", "_part@") for stage in whole for n in (1, 2)}
    assert set(project.ran()) == {"check@mini"} | parts | whole | SUMMARY
    project.assert_idle()


def test_another_torch_makes_stale_what_torch_computes(project: Project) -> None:
    project.replace("pipeline/versions.yaml", "torch: ", "torch: 9.")
    refused = project.snakemake(check=False)
    assert refused.returncode != 0
    assert "python -m pipeline versions" in refused.stdout + refused.stderr
    project.dvc("repro")
    assert set(project.ran()) == EVALUATION | stages("checkpoint", "theory")


def test_wording_makes_nothing_stale(project: Project) -> None:
    project.replace("pipeline/measure/metrics.py", "import math", "# why\nimport math")
    project.replace("pipeline/workflow/errors.py", "remedy:   {", "what to do: {")
    assert "Nothing to be done" in project.planned()
    project.snakemake()
    project.assert_idle()


def test_what_only_looks_changes_nothing(project: Project) -> None:
    """The study calls for another loops.yaml, and the code for another digest."""
    project.set("divergence", None)
    with (project.root / "pipeline/measure/memorization.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    files = ("params.yaml", "loops.yaml", "dvc.lock", "data/code.yaml")
    before = {name: (project.root / name).read_bytes() for name in files}
    for option in ("--lint", "--dag", "--list-rules", "--summary", "-n"):
        project.snakemake(option, check=False)
        assert {name: (project.root / name).read_bytes() for name in files} == before, option


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
    project.set("evaluation.pythia.dtype", "float16")
    project.snakemake()
    assert (project.root / "found.txt").read_text() == before
    assert (project.root / path).read_text() != before


def test_a_check_that_passes_again_leads_to_no_job(project: Project) -> None:
    """Every stage needs it, and none reads more of it than that it passed."""
    project.set("report.show_text", True)
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
    """As if all files but DVC's and git's own had been written tomorrow, or in 1970.

    Whoever leaves a branch and comes back has new times, too.
    """
    for number, file in enumerate(sorted(project.root.rglob("*"))):
        if not {".dvc", ".git", ".snakemake"} & set(file.relative_to(project.root).parts):
            os.utime(file, (time.time() + 86400,) * 2 if number % 2 else (1, 1))


def _data_elsewhere(project: Project) -> None:
    elsewhere = project.root.parent / "elsewhere"
    (project.root / "data").rename(elsewhere)
    (project.root / "data").symlink_to(elsewhere)


def _links_to_the_cache(project: Project) -> None:
    project.dvc("config", "--local", "cache.type", "symlink")
    project.dvc("checkout", "--relink")
    assert (project.root / "data/mini/summary.parquet").is_symlink()


@pytest.mark.parametrize("change", [_touched, _data_elsewhere, _links_to_the_cache])
def test_what_changes_no_content_runs_nothing(
    project: Project, change: Callable[[Project], None]
) -> None:
    """The project itself is a copy at another path than it ran in."""
    change(project)
    project.assert_idle()


def test_a_dropped_model_is_gone(project: Project) -> None:
    with project.params() as values:
        del values["models"]["mini-n-2_7b"]
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
