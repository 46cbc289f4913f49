"""Imports of the package go one way."""

from __future__ import annotations

import ast
from pathlib import Path

ORDER = (
    "workflow",
    "models",
    "interventions",
    "tasks",
    "corpus",
    "checkpoints",
    "samples",
    "measure",
    "theory",
    "analysis",
    "report",
    "study",
    "plan",
    "stages",
    "__main__",
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


def test_imports_go_one_way() -> None:
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
