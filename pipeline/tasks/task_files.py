"""Ensures that a folder's own tasks are plain data: no code in their files is run.

lm-eval imports any function that a task file names with ``!function``, runs code of `evaluate` by
the name of a metric, and its templates can reach all of Python. A study's tasks come from a cache
or a remote that others may write to, so such a file is rejected, and templates are rendered in
jinja's sandbox. lm-eval's own tasks, which are as trusted as the package, keep their functions.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment
from jinja2.sandbox import SandboxedEnvironment
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.workflow.errors import InputError, Problem, shorten

FORMATS = ("json", "csv", "parquet")
"""Allowed data formats, as `datasets` names its readers. Some other readers unpickle."""


def sandboxed(environment: Environment) -> SandboxedEnvironment:
    """The same environment, without access of templates to attributes that begin with `_`."""
    made = SandboxedEnvironment(
        loader=environment.loader,
        undefined=environment.undefined,
        keep_trailing_newline=environment.keep_trailing_newline,
    )
    made.filters.update(environment.filters)
    return made


def require_plain(folder: Path, metrics: Collection[str]) -> None:
    """Raise if task files of a folder contain more than values, or refer to files outside it.

    Args:
        folder: lm-eval looks for ``*.yaml`` at any depth of it.
        metrics: lm-eval's own metrics; for any other it would fetch and run code.

    Raises:
        InputError: a file is not YAML, holds tags such as ``!function``, includes a file that is
            not a ``.yaml`` of the folder, or names data elsewhere, a prompt of another package or
            a metric that lm-eval does not have. Lists all such files.
    """
    problems = [
        Problem(f"task file {path}{what}", *rest)
        for path in sorted(folder.rglob("*.yaml"))
        for what, *rest in _of(path, folder, metrics)
    ]
    if problems:
        raise InputError(*problems)


def _of(path: Path, folder: Path, metrics: Collection[str]) -> Iterator[tuple[str, str, str, str]]:
    """The problems of a file: the key, what it has, expected, remedy."""
    try:
        values = YAML(typ="safe", pure=True).load(path)
    except (YAMLError, UnicodeDecodeError) as error:
        expected = "YAML of plain values, without tags: what it names would be run as code"
        remedy = "write what a function does as a template, or leave the task out"
        yield "", shorten(str(error).replace("\n", " "), 300), expected, remedy
        return

    def inside(file: Any) -> bool:
        target = (path.parent / str(file)).resolve()
        return "://" not in str(file) and target.is_relative_to(folder.resolve())

    for section in _mappings(values):
        for name in _each(section.get("include")):
            if not inside(name) or Path(str(name)).suffix != ".yaml":
                expected, remedy = f"a .yaml file in {folder}", "copy what it includes there"
                yield ", include", shorten(str(name)), expected, remedy
        if "use_prompt" in section:
            expected = "nothing: prompts of another package are its code"
            remedy = "write the prompt as templates: doc_to_text, doc_to_target"
            yield ", use_prompt", shorten(section["use_prompt"]), expected, remedy
        reader = section.get("dataset_path", FORMATS[0])
        if reader not in FORMATS:
            remedy = f"copy the data into {folder} as one of these"
            yield ", dataset_path", shorten(reader), "one of " + ", ".join(FORMATS), remedy
        given = section.get("dataset_kwargs") or {}
        plain = isinstance(given, dict) and set(given) <= {"data_files"}
        if not plain or not all(map(inside, _each(given.get("data_files")))):
            expected = f"data_files, in {folder}, and nothing else"
            yield ", dataset_kwargs", shorten(given), expected, "copy the data into the folder"
        for metric in _each(section.get("metric_list")):
            known = isinstance(metric, dict) and str(metric.get("metric")) in metrics
            if not known or metric.get("hf_evaluate"):
                expected = "metrics of lm-eval's own: " + ", ".join(sorted(metrics))
                remedy = "name some of these: code would be fetched and run for any other"
                yield ", metric_list", shorten(metric), expected, remedy


def _mappings(value: Any) -> Iterator[dict[Any, Any]]:
    """All mappings at any depth, since a group's file holds tasks."""
    if isinstance(value, dict):
        yield value
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _mappings(inner)


def _each(value: Any) -> Iterator[Any]:
    """A value, or each value of a list or of a mapping of lists."""
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, list):
                yield from inner
            else:
                yield inner
    elif value is not None:
        yield value
