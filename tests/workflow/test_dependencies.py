"""dvc.yaml lists for each stage the modules and libraries that decide, and its params."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.stages.registry import STAGES as STAGES_OF
from pipeline.stages.registry import source_of
from pipeline.study.composition import load
from pipeline.study.schema import DERIVED, RUN_SECTION, Study
from pipeline.workflow import dependencies
from pipeline.workflow.dag import Dag, Stage
from pipeline.workflow.inputs import declared

ROOT = Path(__file__).parents[2]

NOT_PARAMS = {"study", "data", "reports", "run", "address", "tasks"}
"""Of a study: its name and folders are in each stage's name and paths; `run` changes no result."""

IN_PATHS = {"name", "family"}
"""Of a model or family: they are in the stage's paths."""

STAGES = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def dag() -> Dag:
    return Dag(ROOT)


@pytest.mark.parametrize("group", STAGES)
def test_deps_and_libraries_are_those_of_the_code(group: str) -> None:
    """If this fails: python -m pipeline dependencies."""
    stage = STAGES[group]["do"]
    assert dependencies.declared_code(stage.get("deps", [])) == dependencies.modules(group)
    versions = [each for each in stage.get("params", []) if isinstance(each, dict)]
    used = dependencies.libraries(group)
    assert versions == ([{str(dependencies.VERSIONS): used}] if used else [])


def test_writing_them_again_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (ROOT / "dvc.yaml").read_text()
    copy = tmp_path / "dvc.yaml"
    copy.write_text(before)
    monkeypatch.setattr(dependencies, "STAGES", copy)
    dependencies.write()
    assert copy.read_text() == before


def test_recorded_versions_are_the_tested_ones() -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    recorded = YAML(typ="safe").load(ROOT / dependencies.VERSIONS)
    normalized = {name.replace("_", "-").lower(): name for name in recorded}
    found = {name.replace("_", "-").lower(): version for name, version in pinned.items()}
    assert {normalized[name]: found[name] for name in normalized} == recorded


def test_what_chooses_the_interventions_is_a_dependency() -> None:
    assert "pipeline/stages/interventions.py" in dependencies.modules("interventions")
    assert "pipeline/interventions/interventions.py" in dependencies.modules("interventions")


@pytest.mark.parametrize("group", ["memorization", "benchmarks"])
def test_a_sweep_follows_torch_and_no_code_that_carries(group: str) -> None:
    assert {"torch", "transformers"} <= set(dependencies.libraries(group))
    assert not [each for each in dependencies.modules(group) if "workflow" in each]


def test_an_error_text_and_a_comment_mean_nothing() -> None:
    code = 'def f(x):\n    """Doc."""\n    if x:\n        raise ValueError("bad")\n    return 1\n'
    same = "def f(x):  # why\n    if x:\n        raise ValueError('worse', x)\n    return 1\n"
    other = code.replace("return 1", "return 2")
    first, second, third = map(dependencies.meaning, (code, same, other))
    assert first == second != third


@cache
def _study() -> Study:
    return load(ROOT / "params.yaml")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _code(stage: Stage) -> list[ast.AST]:
    """The function of a stage; of one that runs a model also what all of these share."""
    group = stage.group.removesuffix("_part")
    tree = _tree(Path(f"pipeline/stages/{group}.py"))
    key = stage.address.partition("@")[2]
    entry = getattr(_study(), STAGES_OF[group].loops_over or "", {}).get(key)
    name = source_of(group, entry) or group
    shared = [_tree(Path("pipeline/stages/evaluated.py"))] if STAGES_OF[group].evaluates else []
    return [
        *(node for node in tree.body if getattr(node, "name", name[:1] + "_") == name),
        *(node for node in tree.body if getattr(node, "name", "").startswith("_")),
        *shared,
    ]


@cache
def _one_of_each_group() -> list[str]:
    """A loop of dvc.yaml declares all stages of a group alike."""
    addresses = sorted(Dag(ROOT).stages)
    return list({address.partition("@")[0]: address for address in addresses}.values())


@pytest.mark.parametrize("address", _one_of_each_group())
def test_params_are_those_that_the_command_uses(dag: Dag, address: str) -> None:
    stage = dag.stages[address]
    resolved = next(each for each in dag.repo.index.stages if each.addressing == address)
    declared = {
        key
        for dep in resolved.deps
        if getattr(dep, "fs_path", "").endswith("params.yaml")
        for key in getattr(dep, "params", [])
    }
    item = address.partition("@")[2]
    if stage.group in ("check", "report"):  # the one checks them all, the other shows them all
        assert declared == set(Study.model_fields) - {DERIVED, RUN_SECTION}
        return
    if stage.group == "theory":  # its section is found by its class
        assert declared == {f"theory.{item}"}
        return
    families = {key: model.family for key, model in _study().models.items()}
    used = set()
    for node in (node for tree in _code(stage) for node in ast.walk(tree)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
        if owner == "study" and node.attr not in NOT_PARAMS:
            part = {
                "corpus": f"corpus.{item}",
                "datasets": f"datasets.{item}",
                "evaluation": f"evaluation.{families.get(item)}",
                "groups": "interventions",
                "listed": "models",
                "localized": "models",
                "steps": "models",
                "statistics": "statistics",
            }
            used.add(part.get(node.attr, node.attr))
        entry = stage.group in ("samples", "checkpoint") and owner in ("model", "family")
        if entry and node.attr not in IN_PATHS:
            used.add(f"{'families' if owner == 'family' else 'models'}.{item}")
    assert declared == used


@pytest.mark.parametrize("address", _one_of_each_group())
def test_a_stage_watches_what_dvc_records(dag: Dag, address: str) -> None:
    files, keys = declared(address)
    resolved = next(each for each in dag.repo.index.stages if each.addressing == address)
    assert {str(file) for file in files} == set(dag.stages[address].deps)
    of_params = [dep for dep in resolved.deps if dep.fs_path.endswith("params.yaml")]
    assert set(keys) == {key for dep in of_params for key in getattr(dep, "params", [])}


def test_packages_are_documented_and_hold_no_code() -> None:
    reexports = ROOT / "pipeline/interventions/__init__.py"  # loads a module when it is asked for
    for init in {*(ROOT / "pipeline").rglob("__init__.py")} - {reexports}:
        body = ast.parse(init.read_text()).body
        assert len(body) == 1, f"{init}: a stage would depend on it in silence"
        assert ast.get_docstring(ast.parse(init.read_text()))


def test_the_root_holds_the_entry_point_alone() -> None:
    files = {file.name for file in (ROOT / "pipeline").glob("*.py")}
    assert files == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize(
    ("library", "places"),
    [
        ("lm_eval", {"measure/benchmarks.py", "tasks/lm_eval_model.py", "tasks/loading.py"}),
        ("seaborn", {"report/figures.py"}),
        ("snakemake", {"workflow/dag.py"}),
        # composing a study is DVC's, too
        ("dvc", {"workflow/dag.py", "workflow/locks.py", "study/composition.py"}),
    ],
)
def test_libraries_with_one_place(library: str, places: set[str]) -> None:
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
    assert importers == places


@pytest.mark.parametrize("room", ["analysis", "report"])
def test_analysis_and_report_know_no_torch(room: str) -> None:
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in (ROOT / "pipeline" / room).rglob("*.py")
    ]
    script = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


def test_interventions_run_anywhere() -> None:
    """Torch and transformers alone, so that it runs on a machine that has nothing else."""
    allowed = set(sys.stdlib_module_names) | {"torch", "transformers", "pipeline"}
    files = [
        *(ROOT / "pipeline/interventions").rglob("*.py"),
        *(ROOT / "pipeline/models").rglob("*.py"),
    ]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                roots = {node.module.split(".")[0]}
            else:
                continue
            assert roots <= allowed, file
