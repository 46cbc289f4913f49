"""One digest a stage of what its code says: all that decides whether an edit of code matters.

``python -m pipeline.workflow.digest`` is the command of the stage ``code``. It writes the digests
and the versions of the computing libraries to `CODE`, of which every other stage has its own key
under `params`. Rows that are reused and shards that are resumed have the digest in their keys.

The code of a stage is its function in ``pipeline/stages/`` and the modules that this imports,
directly or not. Comments, docstrings, annotations of functions and texts of errors do not count.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.workflow.files import atomic, safe_yaml
from pipeline.workflow.provenance import LIBRARIES, VERSIONS

CODE = Path("data/code.yaml")
STAGES = Path("pipeline/stages")
OWN = "mine"
"""The folder of a user's own metrics and figures, all of whose modules count."""

CARRIERS = re.compile(
    r"pipeline/(__main__\.py|plan/|study/|stages/registry\.py|workflow/(?!tables\.py))"
)
"""Code that no result depends on: it schedules, fetches, reports progress, checks params. What
shapes a table (its schema, and how it is written) is not among it."""

SCHEMAS = re.compile(r"pipeline/(?!report/)\w+/(schemas|columns)\.py")
"""Modules of the schemas of a room's tables, of which a stage depends on those that it names."""


def digests() -> dict[str, dict[str, object]]:
    """Stage -> its entry of `CODE`; or source -> entry, where each source has a function.

    Raises:
        SyntaxError: a module cannot be parsed.
    """
    made: dict[str, dict[str, object]] = {}
    for module in sorted(STAGES.glob("*.py")):
        functions = [] if CARRIERS.match(str(module)) else _functions(module)
        if module.stem in functions:
            made[module.stem] = entry(module.stem)
        elif functions:
            made[module.stem] = {name: entry(f"{module.stem}.{name}") for name in functions}
    return made


def entry(key: str) -> dict[str, object]:
    """The entry of one stage: the digest of its code, and library -> recorded version.

    The key is a stage, such as ``memorization``, or stage and source, such as ``samples.pile``.
    """
    recorded = safe_yaml(VERSIONS)
    return {"code": digest(key), **{name: recorded[name] for name in libraries(key)}}


def digest(key: str) -> str:
    """The digest of what the code of a stage says, by its key as of `entry`."""
    nodes, _ = _stage(key)
    content, read = hashlib.sha256("\n".join(map(_dump, nodes)).encode()), files(key)
    below = [node for tree in nodes for node in ast.walk(tree)]
    words = _words(below).union(*map(_words_of, read))
    for file in read:
        content.update(f"\n{file}\n".encode())
        if SCHEMAS.match(str(file)):
            named, _ = _reached(file, words)
            content.update("\n".join(map(_dump, named)).encode())
        else:
            content.update(meaning(file).encode() if file.suffix == ".py" else file.read_bytes())
    return content.hexdigest()[:32]


def files(key: str) -> list[Path]:
    """The modules that the function of a stage imports, directly or not, and their data files.

    A data file belongs to a module of its room that names it, or names the folder that it is in.
    """
    _, todo = _stage(key)
    found = set[Path]()
    while todo:
        file = todo.pop()
        if file not in found and not CARRIERS.match(str(file)):
            found.add(file)
            own = set(Path(OWN).rglob("*.py")) if file.parts[0] == OWN else set()
            todo |= _files(_imports_in(file)) | own | _data(file)
    return sorted(found)


def libraries(key: str) -> list[str]:
    """Those of `LIBRARIES` that the modules of a stage import, sorted."""
    nodes, _ = _stage(key)
    imports = [each for node in nodes for each in _imports(ast.walk(node))]
    imports += [each for file in files(key) for each in _imports_in(file)]
    return sorted(set(LIBRARIES) & {name.partition(".")[0] for _, name in imports})


@cache
def meaning(file: Path) -> str:
    """What a module says, without comments, docstrings, annotations and texts of errors."""
    return _dump(parsed(file))


@cache
def parsed(file: Path) -> ast.Module:
    """The syntax tree of a module, without what no result depends on."""
    tree: ast.Module = _Meaning().visit(ast.parse(file.read_text(encoding="utf-8")))
    return tree


def forget() -> None:
    """Read the code again at the next question."""
    for cached in (meaning, parsed, _nodes, _imports_in, _words_of, _data, _data_files):
        cached.cache_clear()


def write() -> None:
    """Write `CODE`."""
    with atomic(CODE) as temporary:
        YAML().dump(digests(), temporary)


class _Meaning(ast.NodeTransformer):
    """Drops docstrings, annotations of functions, imports for these, and arguments of errors."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop a string that stands alone."""
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Drop the arguments of an error, and the description of a field of a schema."""
        name = getattr(node.func, "id", "")
        if name in ("Problem", "bad_input") or name.endswith("Error"):
            return ast.copy_location(ast.Call(node.func, [], []), node)
        if name == "Field":
            node.keywords = [each for each in node.keywords if each.arg != "description"]
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """Drop imports that only annotations need."""
        return None if getattr(node.test, "id", "") == "TYPE_CHECKING" else self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Drop the annotation of an argument."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Drop the annotation of the result."""
        node.returns = None
        return self.generic_visit(node)


def _dump(node: object) -> str:
    """A syntax tree as text, the same under every version of Python.

    That of `ast.dump` has the fields that a version adds, and is without those it leaves out.
    """
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):  # Python 3.12 may add empty texts
        node.values = [each for each in node.values if getattr(each, "value", None) != ""]
    fields = ((name, getattr(node, name, None)) for name in node._fields)
    told = [f"{name}={_dump(value)}" for name, value in fields if value is not None and value != []]
    return f"{type(node).__name__}({', '.join(told)})"


def _functions(module: Path) -> list[str]:
    """The functions of stages in a module; each takes the study first."""
    functions = (node for node in parsed(module).body if isinstance(node, ast.FunctionDef))
    public = (node for node in functions if not node.name.startswith("_"))
    return [node.name for node in public if [arg.arg for arg in node.args.args[:1]] == ["study"]]


def _stage(key: str) -> tuple[list[ast.stmt], set[Path]]:
    """What the function of a stage uses of its module, and the files that this imports."""
    group, _, source = key.partition(".")
    return _reached(STAGES / f"{group}.py", {source or group})


def _reached(module: Path, names: Iterable[str]) -> tuple[list[ast.stmt], set[Path]]:
    """The definitions that names of a module need of it, and the files that these import."""
    defined: dict[str, ast.stmt] = {}
    imports: list[tuple[str, str]] = []
    for node in parsed(module).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += _imports([node])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names_in = (each for target in targets for each in ast.walk(target))
            defined |= {each.id: node for each in names_in if isinstance(each, ast.Name)}
    reached: dict[str, ast.stmt] = {}
    imported, todo = set[Path](), [*names]
    while todo:
        name = todo.pop()
        imported |= _files(each for each in imports if each[0] == name)
        if name in reached or name not in defined:
            continue
        reached[name] = defined[name]
        imported |= _files(_imports(ast.walk(defined[name])))
        todo += [each.id for each in ast.walk(defined[name]) if isinstance(each, ast.Name)]
    return [reached[name] for name in sorted(reached)], imported


def _words(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that occur in nodes of code."""
    words = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    words |= {alias.name for node in imports for alias in node.names}
    return words | {node.id for node in nodes if isinstance(node, ast.Name)}


@cache
def _nodes(module: Path) -> list[ast.AST]:
    """All of the syntax tree of a module."""
    return list(ast.walk(parsed(module)))


@cache
def _words_of(module: Path) -> set[str]:
    """The names that occur in a module; none of one of schemas, which uses no other, or of data."""
    named = module.suffix == ".py" and not SCHEMAS.match(str(module))
    return _words(_nodes(module)) if named else set()


def _files(imports: Iterable[tuple[str, str]]) -> set[Path]:
    """The files of the package, and of `mine/`, that some imports load."""
    names = (name for _, name in imports if name.startswith(("pipeline.", "mine.")))
    return {path for name in names if (path := Path(f"{name.replace('.', '/')}.py")).exists()}


@cache
def _imports_in(file: Path) -> list[tuple[str, str]]:
    """The imports of a module; a data file has none."""
    return list(_imports(_nodes(file))) if file.suffix == ".py" else []


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Each name that an import among nodes binds, with each module that it may be, or be of."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                for module in (node.module, f"{node.module}.{alias.name}"):
                    yield alias.asname or alias.name, module


@cache
def _data(named_in: Path) -> set[Path]:
    """The data files of a room that one of its modules, or another of its data files, names."""
    room = Path(OWN) if named_in.parts[0] == OWN else Path(*named_in.parts[:2])
    if named_in.suffix != ".py":
        words = set(re.split(r"[\s\"'/]+", named_in.read_text("utf-8", errors="replace")))
    else:
        constants = (node for node in _nodes(named_in) if isinstance(node, ast.Constant))
        texts = [node.value for node in constants if isinstance(node.value, str)]
        words = {part for text in texts for part in text.split("/")}
        words |= {f"{named_in.stem}{text}" for text in texts if text.startswith(".")}
    return {file for file in _data_files(room) if words & set(file.relative_to(room).parts)}


@cache
def _data_files(room: Path) -> list[Path]:
    return [
        file
        for file in sorted(room.rglob("*"))
        if file.is_file() and file.suffix not in (".py", ".pyc") and not file.name.startswith(".")
    ]


if __name__ == "__main__":
    write()
