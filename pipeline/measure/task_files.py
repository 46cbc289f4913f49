"""A folder's own tasks are data: nothing in their files is run.

lm-eval imports whatever a task file names with ``!function``, and its templates reach all of
Python. A study's tasks come from a cache or a remote that others may write to, so such a file is
refused, and templates are rendered in jinja's sandbox. lm-eval's own tasks, which are as trusted as
the package, keep their functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment
from jinja2.sandbox import SandboxedEnvironment
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import InputError, Problem, shorten


def sandboxed(environment: Environment) -> SandboxedEnvironment:
    """The same environment, but its templates reach no attribute that begins with an underscore."""
    made = SandboxedEnvironment(
        loader=environment.loader,
        undefined=environment.undefined,
        keep_trailing_newline=environment.keep_trailing_newline,
    )
    made.filters.update(environment.filters)
    return made


def require_plain(folder: Path) -> None:
    """Refuse a folder with task files that are more than values, or that reach out of it.

    Args:
        folder: at any depth of which lm-eval would look for ``*.yaml``.

    Raises:
        InputError: a file that is no YAML, holds tags such as ``!function``, or includes another
            that is not a ``.yaml`` of the folder; all of them at once.
    """
    problems = [problem for path in sorted(folder.rglob("*.yaml")) for problem in _of(path, folder)]
    if problems:
        raise InputError(*problems)


def _of(path: Path, folder: Path) -> Iterator[Problem]:
    try:
        values = YAML(typ="safe", pure=True).load(path)
    except (YAMLError, UnicodeDecodeError) as error:
        yield Problem(
            f"task file {path}",
            shorten(str(error).replace("\n", " "), 300),
            "YAML of plain values, without tags: what it names would be run as code",
            "write what a function does as a template, or leave the task out",
        )
        return
    included = values.get("include", []) if isinstance(values, dict) else []
    for name in included if isinstance(included, list) else [included]:
        target = (path.parent / str(name)).resolve()
        if target.suffix != ".yaml" or not target.is_relative_to(folder.resolve()):
            yield Problem(
                f"task file {path}, include",
                shorten(str(name)),
                f"a .yaml file in {folder}",
                "copy what it includes into the folder",
            )
