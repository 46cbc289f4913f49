"""dvc.yaml lists for each stage exactly the modules that it runs and the params that it is given.

Read off the code: each command of pipeline/__main__.py imports what it needs in its own function,
and takes its values from `study` and `entry`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pipeline.dag import Dag, Stage
from pipeline.inputs import declared
from pipeline.params import DERIVED, EXPERIMENTS, RUN_SECTION, Study
from pipeline.study import load

ROOT = Path(__file__).parents[1]
COMMANDS = "pipeline/__main__.py"

CARRIERS = {
    COMMANDS: "parses, reads, calls, writes; no logic",
    "pipeline/params.py": "carries the values that dvc.yaml lists under params",
    "pipeline/study.py": "reads them",
    "pipeline/loops.py": "derives what dvc.yaml loops over",
    "pipeline/dag.py": "says where DVC's cache has an earlier table",
    "pipeline/inputs.py": "reads what dvc.yaml declares",
    "pipeline/device.py": "chooses where a stage runs",
    "pipeline/hub.py": "fetches bytes that a commit and its checksums determine",
    "pipeline/interruption.py": "ends the process when it is told to",
    "pipeline/progress.py": "says how far it is",
    "pipeline/provenance.py": "says what ran and what it cost",
    "pipeline/wheel.py": "fetches bytes that a checksum determines",
}
"""Modules that no stage depends on, though its command runs them: they compute nothing."""

NOT_PARAMS = {"study", "data", "reports", "run", "address", "tasks"}
"""Of a study: its name and folders are in each stage's name and paths; `run` changes no result."""

IN_PATHS = {"name", "family"}
"""Of a model or family: they are in the stage's paths."""


@pytest.fixture(scope="module")
def dag() -> Dag:
    return Dag(ROOT)


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _modules(node: ast.AST) -> set[str]:
    """Files of the package that the imports below `node` load."""
    names = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            names |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module:
            names |= {each.module} | {f"{each.module}.{alias.name}" for alias in each.names}
    files = {f"{name.replace('.', '/')}.py" for name in names if name.startswith("pipeline.")}
    return {file for file in files if (ROOT / file).exists()}


def _closure(start: set[str]) -> set[str]:
    reached, todo = set(), set(start)
    while todo:
        file = todo.pop()
        reached.add(file)
        todo |= _modules(_tree(file)) - reached
    return reached


def _function(stage: Stage) -> ast.FunctionDef:
    """The function of a stage's command: ``samples pile x`` is samples_pile, ``report`` report."""
    words = load(ROOT / "params.yaml").command(stage.address)
    functions = {
        node.name: node for node in _tree(COMMANDS).body if isinstance(node, ast.FunctionDef)
    }
    return functions.get("_".join(words[:2])) or functions[words[0]]


def _shared_with_other_sources(stage: Stage) -> set[str]:
    """What the same stage of another source imports: dvc.yaml lists deps for all sources alike.

    A source's own module is not among them: its name is filled in.
    """
    group = {
        "samples": ("records", "pile", "pythia", "file"),
        "checkpoint": ("training", "hub", "gguf", "folder"),
        "theory": EXPERIMENTS,
    }
    functions = {
        node.name: node for node in _tree(COMMANDS).body if isinstance(node, ast.FunctionDef)
    }
    reached = set()
    for source in group.get(stage.group, ()):
        own = {f"pipeline/{folder}/{source}.py" for folder in ("samples", "checkpoints")}
        reached |= _closure(_modules(functions[f"{stage.group}_{source}"])) - own
    return reached


def _all_stages() -> list[str]:
    return sorted(Dag(ROOT).stages)


@pytest.mark.parametrize("address", _all_stages())
def test_code_deps_are_the_closure_of_the_imports(dag: Dag, address: str) -> None:
    stage = dag.stages[address]
    closure = _closure(_modules(_function(stage))) | _shared_with_other_sources(stage)
    closure -= set(CARRIERS)
    if stage.group == "check":  # the schema is what it applies
        closure |= _closure({"pipeline/study.py"})
    page = ROOT / "pipeline/report"
    parts = [*page.glob("page.*"), *page.glob("vendor/*.js")] if stage.group == "report" else []
    beside = {file.relative_to(ROOT).as_posix() for file in parts if file.suffix != ".py"}
    declared = {dep for dep in stage.deps if dep.startswith("pipeline/")}
    assert declared == closure | beside


@pytest.mark.parametrize("address", _all_stages())
def test_params_are_those_that_the_command_uses(dag: Dag, address: str) -> None:
    stage = dag.stages[address]
    (resolved,) = dag.repo.stage.collect(address)
    declared = {key for dep in resolved.deps for key in getattr(dep, "params", [])}
    item = address.partition("@")[2]
    if stage.group in ("check", "report"):  # the one checks them all, the other shows them all
        assert declared == set(Study.model_fields) - {RUN_SECTION, DERIVED}
        return
    families = {key: model.family for key, model in load(ROOT / "params.yaml").models.items()}
    used = set()
    for node in ast.walk(_function(stage)):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        if node.value.id == "study" and node.attr not in NOT_PARAMS | {
            "model",
            "family",
            "experiment",
        }:
            part = {
                "corpus": f"corpus.{item}",
                "datasets": f"datasets.{item}",
                "evaluation": f"evaluation.{families.get(item)}",
                "groups": "interventions",
                "statistics": "statistics.seed",  # thresholds are the report's, which has all
            }
            used.add(part.get(node.attr, node.attr))
        if node.value.id == "entry" and node.attr not in IN_PATHS:
            sections = {"samples": "families", "theory": "theory"}
            used.add(f"{sections.get(stage.group, 'models')}.{item}")
    assert declared == used


@pytest.mark.parametrize("address", _all_stages())
def test_a_stage_watches_what_dvc_records(
    dag: Dag, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    files, keys = declared(address)
    (resolved,) = dag.repo.stage.collect(address)
    assert {str(file) for file in files} == set(dag.stages[address].deps)
    assert set(keys) == {key for dep in resolved.deps for key in getattr(dep, "params", [])}


def test_packages_are_documented_and_hold_no_code() -> None:
    reexports = ROOT / "pipeline/interventions/__init__.py"  # loads a module when it is asked for
    for init in {*(ROOT / "pipeline").rglob("__init__.py")} - {reexports}:
        body = ast.parse(init.read_text()).body
        assert len(body) == 1, f"{init}: a stage would depend on it in silence"
        assert ast.get_docstring(ast.parse(init.read_text()))


def test_commands_hold_no_logic() -> None:
    """No loop and no arithmetic in a command: what it computes would escape the code deps."""
    for node in _tree(COMMANDS).body:
        if isinstance(node, ast.FunctionDef):
            inside = [type(each) for each in ast.walk(node)]
            assert not {ast.For, ast.While} & set(inside), node.name


def test_imports_point_up_the_list() -> None:
    """Data goes down; imports point up: a lower folder may use a higher one, never the reverse."""
    order = ["samples", "checkpoints", "models", "interventions", "measure", "theory", "report"]
    allowed = {
        "samples": set(),
        "checkpoints": set(),
        "models": set(),
        "interventions": {"models"},
        "measure": {"samples", "models", "interventions"},
        "theory": {"samples", "models", "interventions"},
        "report": {"interventions"},  # the names of interventions, which need no torch
    }
    for folder in order:
        for file in (ROOT / "pipeline" / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            reached = {module.split("/")[1] for module in _modules(_tree(path))}
            assert reached & set(order) <= allowed[folder] | {folder}, path


@pytest.mark.parametrize(
    ("library", "place"),
    [("lm_eval", "measure"), ("seaborn", "report"), ("snakemake", ""), ("dvc", "")],
)
def test_libraries_with_one_place(library: str, place: str) -> None:
    importers = set()
    for file in (ROOT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            if any(name.split(".")[0] == library for name in names):
                importers.add(file.relative_to(ROOT / "pipeline").as_posix())
    if library == "dvc":  # composing a study is DVC's, too
        assert importers == {"dag.py", "study.py"}
    else:
        assert len(importers) == 1
        assert next(iter(importers)).startswith(place)


def test_the_report_knows_no_torch() -> None:
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / "pipeline" / "report").rglob("*.py")
    ]
    script = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


def test_interventions_run_anywhere() -> None:
    """Torch and transformers alone, so that it runs on a machine that has nothing else."""
    allowed = set(sys.stdlib_module_names) | {"torch", "transformers", "pipeline"}
    for folder in ("interventions", "models"):
        for file in (ROOT / "pipeline" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    roots = {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    roots = {node.module.split(".")[0]}
                else:
                    continue
                assert roots <= allowed, file
