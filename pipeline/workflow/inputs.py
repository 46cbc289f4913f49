"""What DVC records of a stage must be what the stage has read.

DVC takes the checksums of a stage's inputs when its command has ended. A param, a module or a table
that was edited meanwhile would be recorded beside results that know nothing of it, and the stage
would be called fresh from then on. So the command itself compares its inputs at its end with those
at its beginning, and fails where they differ.

It reads them off dvc.yaml, for to ask DVC takes longer than many a stage. A test holds the two
together.
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
"""What lies here is compared by content; data, which may be large, by size and time."""


@contextmanager
def held_still(address: str) -> Iterator[None]:
    """Fail at the end if an input of the stage is another than at the beginning.

    Args:
        address: of the stage that runs, such as ``memorization@tiny-neo-8``.

    Raises:
        InputError: one has changed; DVC then records nothing.
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
                "the same from its beginning to its end, or nobody knows what its results are of",
                "run it again; what it wrote is not recorded",
            )
        )


def code(address: str) -> dict[str, str]:
    """Module that a stage depends on -> checksum of what it does; comments and texts are left out.

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
    """The files and folders that a stage reads, and its keys of params.yaml, as dvc.yaml has them.

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
    """File, or key of params.yaml -> what is compared of it; None where there is nothing."""
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
