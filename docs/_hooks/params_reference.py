"""Writes the reference of params.yaml into the page that asks for it, from the schema itself."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.study.schema import Study

MARK = "<!-- reference of params.yaml -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the mark by one table for each section of params.yaml."""
    return markdown.replace(MARK, "\n\n".join(_sections())) if MARK in markdown else markdown


def _sections() -> list[str]:
    """The sections in the order of the file, each class once."""
    waiting: list[tuple[str, type]] = [("The whole file", Study)]
    seen: set[type] = set()
    written = []
    while waiting:
        title, section = waiting.pop(0)
        if section in seen:
            continue
        seen.add(section)
        fields = getattr(section, "model_fields", None) or _described(section)
        rows = [_row(name, field) for name, field in fields.items()]
        about = re.split(r"\n\n?Args:", inspect.getdoc(section) or "")[0]
        written.append(
            f"### {title}\n\n{about}\n\n"
            "| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)
        )
        below = [
            ((name if section is Study else f"{title}.{name}") + _tag(model), model)
            for name, field in fields.items()
            for model in _models(field.annotation)
        ]
        waiting = below + waiting
    return written


def _described(section: type) -> dict[str, FieldInfo]:
    """The fields of a dataclass that its line in a study may have, described by its docstring."""
    args = (inspect.getdoc(section) or "").partition("Args:\n")[2].partition("\n\n")[0]
    said = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", args, re.MULTILINE))
    kinds = get_type_hints(section)
    return {
        field.name: FieldInfo(
            annotation=kinds[field.name],
            default=PydanticUndefined if field.default is MISSING else field.default,
            description=" ".join(said[field.name].split()).rstrip("."),
        )
        for field in dataclasses.fields(section)
    }


def _tag(section: type) -> str:
    """What chooses this section of several: the value of its `source` or `name`."""
    for name, field in getattr(section, "model_fields", {}).items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            return f", {name}: {field.default}"
    return ""


def _row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{_value(field)}`"
    chosen = get_origin(field.annotation) is Literal
    meaning = field.description or ("chooses this section" if chosen else "see below")
    meaning = meaning.replace("|", "\\|")
    return f"| `{name}` | {_type(field.annotation)} | {default} | {meaning} |"


def _value(field: FieldInfo) -> object:
    made = field.get_default(call_default_factory=True)
    if isinstance(made, BaseModel):
        return "as below"
    return "null" if made is None else made


def _type(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _type(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        kinds = (each for each in get_args(kind) if get_origin(each) is not Callable)
        return " or ".join(map(_type, kinds))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (list, Sequence):
        return f"list of {_type(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return f"mapping of {_type(key)} to {_type(value)}"
    if kind is type(None):
        return "null"
    if _models(kind):
        return f"section {kind.__name__}"
    return {"str": "text", "int": "integer", "float": "number", "bool": "true or false"}.get(
        kind.__name__, kind.__name__
    )


def _models(kind: Any) -> list[type]:
    if inspect.isclass(kind) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
        return [kind]
    return [model for each in get_args(kind) for model in _models(each)]
