"""Imports of the package go one way, and some libraries are imported in one place."""

import ast
import sys
from pathlib import Path

from tests.project import python

ORDER = (
    *("workflow", "models", "interventions", "tasks", "corpus", "checkpoints", "samples"),
    *("mitigations", "measure", "localization", "theory", "analysis", "report", "study"),
    *("plan", "stages", "__main__"),
)
"""A room imports itself and those before it."""


def room(module: str) -> str:
    """The room of a module such as ``pipeline.samples.pile``."""
    return module.split(".")[1]


def imports(file: Path) -> set[str]:
    """The modules of the package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pipeline"):
            each = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else node.module for name in each}
    return found


def is_module(name: str) -> bool:
    """Whether a name is a module or a package, and not something in one."""
    path = Path(name.replace(".", "/"))
    return path.is_dir() or path.with_suffix(".py").exists()


def test_imports_go_one_way():
    seen, wrong = 0, []
    for file in Path("pipeline").rglob("*.py"):
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        if module == "pipeline" or "conf" in file.parts:
            continue
        for name in imports(file):
            seen += 1
            if ORDER.index(room(name)) > ORDER.index(room(module)):
                wrong.append(f"{module} imports {name}")
    assert seen > 300
    assert not wrong, "\n".join(sorted(wrong))


def test_packages_are_documented_and_hold_no_code():
    reexports = Path("pipeline/interventions/__init__.py")  # loads a module when it is asked for
    for init in {*Path("pipeline").rglob("__init__.py")} - {reexports}:
        tree = ast.parse(init.read_text())
        assert len(tree.body) == 1, f"{init}: a stage would depend on it in silence"
        assert ast.get_docstring(tree)


def test_the_root_holds_the_entry_point_alone():
    """And the mark of a typed package."""
    files = {file.name for file in Path("pipeline").glob("*.py")}
    assert files == {"__init__.py", "__main__.py"}
    assert Path("pipeline/py.typed").is_file()


def libraries(file: Path) -> set[str]:
    """What a file imports, anywhere in it, by the first part of its name."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def test_libraries_with_one_place():
    used = {file: libraries(file) for file in Path("pipeline").rglob("*.py")}
    for library, places in {
        "lm_eval": {"measure/benchmarks.py", "tasks/lm_eval_model.py", "tasks/loading.py"},
        "seaborn": {"report/figures.py"},
        "snakemake": {"workflow/rules.py"},
        # composing a study is DVC's, too
        "dvc": {"workflow/dag.py", "workflow/locks.py", "study/composition.py"},
    }.items():
        assert {file for file in used if library in used[file]} == {
            Path("pipeline", place) for place in places
        }


def test_analysis_and_report_know_no_torch():
    files = [
        file for room in ("analysis", "report") for file in Path("pipeline", room).rglob("*.py")
    ]
    modules = [".".join(file.with_suffix("").parts) for file in files]
    script = f"import sys, {', '.join(modules)}; print('torch' in sys.modules)"
    assert python("-c", script).stdout == "False\n"


def test_interventions_run_anywhere():
    """Torch and transformers alone, so that it runs on a machine that has nothing else."""
    allowed = set(sys.stdlib_module_names) | {"torch", "transformers", "pipeline"}
    for room in ("interventions", "models"):
        for file in Path("pipeline", room).rglob("*.py"):
            assert libraries(file) <= allowed, file
