"""Checks that a stage's inputs do not change while it runs.

DVC takes the checksums of a stage's inputs after its command has ended. A param, a module or a
table that was edited meanwhile would be recorded with results that do not depend on the edit, and
DVC would call the stage fresh from then on. So the command itself compares its inputs at its end
with those at its beginning, and fails if they differ.

It reads the inputs from dvc.yaml, since asking DVC takes longer than many stages. A test compares
the two.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.workflow.dependencies import meaning
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.files import PARAMS

STAGES = Path("dvc.yaml")
CODE = "pipeline"
"""Folders whose files are compared by content; data, which may be large, by size and time."""


@contextmanager
def held_still(address: str) -> Iterator[None]:
    """Raise at the end if an input of the stage has changed since the beginning.

    Args:
        address: of the stage that runs, such as ``memorization@tiny-neo-8``.

    Raises:
        InputError: an input has changed; DVC then records nothing.
    """
    files, keys = declared(address)
    before = _state(files, keys)
    yield
    after = _state(files, keys)
    changed = [name for name, state in before.items() if after[name] != state]
    if changed:
        raise InputError(
            Problem(
                f"inputs of stage {address}",
                f"changed while it ran: {', '.join(changed)}",
                "inputs that do not change while a stage runs",
                "run it again; its output is not recorded",
            )
        )


def code(address: str) -> dict[str, str]:
    """Module that a stage depends on -> checksum of its code, without comments and texts.

    Args:
        address: of a stage of the study in force.
    """
    files, _ = declared(address)
    return {
        str(file): meaning(file.read_text(encoding="utf-8"))
        for file in files
        if file.parts[0] == CODE and file.suffix == ".py"
    }


def declared(address: str) -> tuple[list[Path], list[str]]:
    """The files and folders that a stage reads, and its keys of params.yaml, from dvc.yaml.

    Args:
        address: of a stage of the study in force.
    """
    group, _, key = address.partition("@")
    values = _read(PARAMS)
    stage = _read(STAGES)["stages"][group]
    loop = re.fullmatch(r"\$\{([\w.]+)\}", str(stage["foreach"]))
    values |= {"key": key, "item": _value(values, loop[1])[key] if loop else key}

    def filled(text: str) -> str:
        return re.sub(r"\$\{([\w.]+)\}", lambda found: str(_value(values, found[1])), text)

    lists = (stage["do"].get(each, []) for each in ("deps", "params"))
    files, keys = ([filled(text) for text in each if isinstance(text, str)] for each in lists)
    return [Path(file) for file in files], keys


def _state(files: list[Path], keys: list[str]) -> dict[str, object]:
    """File, or key of params.yaml -> its compared state; None if it does not exist."""
    values = _read(PARAMS)
    found: dict[str, object] = {key: _value(values, key) for key in keys}
    for file in files:
        if file.parts[0] == CODE:
            there = file.is_file()
            found[str(file)] = hashlib.sha256(file.read_bytes()).digest() if there else None
        else:
            below = sorted(file.rglob("*")) if file.is_dir() else [file]
            stats = [(each, each.stat()) for each in below if each.is_file()]
            found[str(file)] = [(each, stat.st_size, stat.st_mtime_ns) for each, stat in stats]
    return found


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _read(path: Path) -> Any:
    return YAML(typ="safe").load(path)
