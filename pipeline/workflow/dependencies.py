"""The dependencies of a stage beyond data and params: its modules and its libraries.

Both follow from the imports. A stage is a module of ``pipeline/stages/``, which imports what it
needs. `write` puts modules and libraries into dvc.yaml; a test compares the two.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.workflow.errors import InputError, Problem

STAGES = Path("dvc.yaml")
VERSIONS = Path("pipeline/versions.yaml")
"""Library -> its version, read by DVC as params."""

LIBRARIES = (
    *("lm_eval", "numpy", "polars", "rapidfuzz", "sacrebleu", "tokenizers", "torch"),
    "transformers",
)
"""The libraries that compute the contents of the tables."""

CARRIES = re.compile(
    r"pipeline/(__main__\.py|plan/|study/|workflow/|theory/columns\.py|\w+/schema\.py)"
)
"""Code that does not affect results: it reads, writes, fetches, schedules, checks params."""

SOURCES = {"samples": "samples", "checkpoint": "checkpoints"}
"""Stages with a module for each source -> the package of these modules."""


def functions(group: str) -> dict[str, Path]:
    """The functions of a group of stages -> the file that each is in."""
    file = Path("pipeline/stages") / f"{group.removesuffix('_part')}.py"
    return {
        node.name: file
        for node in _tree(file).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def modules(group: str) -> list[str]:
    """The modules that determine the results of a group of stages, sorted, as in dvc.yaml.

    The module of a source stands as a template: ``pipeline/samples/${item.source}.py``.
    """
    found = _modules(group)
    own = _of_sources(group) & found
    template = {f"pipeline/{SOURCES[group]}/${{item.source}}.py"} if own else set()
    return sorted(found - own | template)


def libraries(group: str) -> list[str]:
    """Those of `LIBRARIES` that the modules of a group of stages import, sorted."""
    roots = {
        name.partition(".")[0]
        for file in _modules(group)
        for node in ast.walk(_tree(Path(file)))
        for name in _names(node)
    }
    return sorted(set(LIBRARIES) & roots)


def write() -> None:
    """Write the code deps of every stage into dvc.yaml, and the libraries among its params."""
    writer = YAML()
    writer.width = 120
    writer.preserve_quotes = True
    writer.indent(mapping=2, sequence=4, offset=2)
    declared = writer.load(STAGES)
    for group, stage in declared["stages"].items():
        deps = stage["do"].get("deps", [])
        code = modules(group)
        if declared_code(deps) != code:
            deps[:] = [dep for dep in deps if dep not in declared_code(deps)] + code
        params = [each for each in stage["do"].get("params", []) if not isinstance(each, dict)]
        wanted = [*params, {str(VERSIONS): used}] if (used := libraries(group)) else params
        if stage["do"].get("params", []) != wanted:
            stage["do"]["params"] = wanted
    writer.dump(declared, STAGES)


def declared_code(deps: Iterable[str]) -> list[str]:
    """The modules among the deps of a stage of dvc.yaml."""
    return [dep for dep in deps if dep.startswith("pipeline/") and dep.endswith(".py")]


def write_versions() -> None:
    """Record the installed versions as those that computed the results."""
    YAML().dump(installed(), VERSIONS)


def installed() -> dict[str, str]:
    """Library -> the installed version, without a build label such as ``+cpu``."""
    return {name: version(name).partition("+")[0] for name in LIBRARIES}


def require_versions() -> None:
    """Raise if the installed libraries differ from the versions recorded for the results.

    Raises:
        InputError: a version differs from the recorded one.
    """
    recorded, found = YAML(typ="safe").load(VERSIONS), installed()
    differ = [name for name in LIBRARIES if found[name] != recorded.get(name)]
    if differ:
        raise InputError(
            Problem(
                "installed libraries",
                ", ".join(f"{name} {found[name]}" for name in differ),
                ", ".join(f"{name} {recorded.get(name)}" for name in differ) + f" ({VERSIONS})",
                "install these, or record yours and measure anew: python -m pipeline versions",
            )
        )


def meaning(code: str) -> str:
    """A checksum of a module's code without comments, layout, docstrings and error texts."""
    tree = _Meaning().visit(ast.parse(code))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


class _Meaning(ast.NodeTransformer):
    """Drops docstrings, and the arguments of errors."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop a string that stands alone."""
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop the arguments of an error."""
        name = getattr(node.func, "id", "")
        if name == "Problem" or name.endswith("Error"):
            return ast.copy_location(ast.Call(node.func, [], []), node)
        return self.generic_visit(node)


def _modules(group: str) -> set[str]:
    """The files that determine a group's results: the imports of its functions, and theirs."""
    found = set[str]()
    for file in functions(group).values():
        found |= _closure({str(file)})
    return {each for each in found if not CARRIES.match(each)}


def _of_sources(group: str) -> set[str]:
    """The files of the sources' own modules."""
    return {f"pipeline/{SOURCES[group]}/{name}.py" for name in functions(group) if group in SOURCES}


def _closure(start: set[str]) -> set[str]:
    """Files, and those that they import, directly or not, except through `CARRIES`."""
    reached, todo = set[str](), set(start)
    while todo:
        file = todo.pop()
        reached.add(file)
        if not CARRIES.match(file):
            todo |= _imported(_tree(Path(file))) - reached
    return reached


def _imported(node: ast.AST) -> set[str]:
    """The files of the package that the imports below a node load."""
    names = {name for each in ast.walk(node) for name in _names(each)}
    files = {f"{name.replace('.', '/')}.py" for name in names if name.startswith("pipeline.")}
    return {file for file in files if Path(file).exists()}


def _names(node: ast.AST) -> list[str]:
    """The modules that an import statement may load; none for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
