"""Checks that a stage's inputs do not change while it runs.

DVC takes the checksums of a stage's inputs after its command has ended. A param, a module or a
table that was edited meanwhile would be recorded with results that do not depend on the edit, and
DVC would call the stage fresh from then on. So the command itself compares its inputs at its end
with those at its beginning, and fails if they differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.workflow import digest
from pipeline.workflow.dag import Stage, resolved
from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import files_of, safe_yaml


@contextmanager
def held_still(address: str) -> Iterator[None]:
    """Raise at the end if an input of the stage that runs has changed since the beginning.

    Raises:
        InputError: the recorded digest is not that of the code; or an input has changed while the
            stage ran. DVC then records nothing.
    """
    stage = resolved(address)
    before = _state(stage)
    keys = stage.params.get(str(digest.CODE), ())
    if any(before[f"{key} of {digest.CODE}"] != before[f"{key} of code"] for key in keys):
        raise bad_input(
            f"code of stage {address}",
            f"another digest than in {digest.CODE}",
            "the digest of the code that runs",
            "record it: dvc repro code; then give the same command again",
        )
    yield
    after = _state(stage)
    if changed := [name for name, state in before.items() if after[name] != state]:
        raise bad_input(
            f"inputs of stage {address}",
            f"changed while it ran: {', '.join(changed)}",
            "inputs that do not change while a stage runs",
            "run it again; its output is not recorded",
        )


def _state(stage: Stage) -> dict[str, object]:
    """Input -> its compared state: a param's value, the digest of code, size and time of a file."""
    state: dict[str, object] = {}
    for file, keys in stage.params.items():
        values = safe_yaml(file) if Path(file).exists() else None
        state |= {f"{key} of {file}": _value(values, key) for key in keys}
    digest.forget()
    for key in stage.params.get(str(digest.CODE), ()):
        state[f"{key} of code"] = digest.entry(key)
    for name in stage.deps:
        stats = [(file, file.stat()) for file in files_of(Path(name))]
        state[name] = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
    return state


def _value(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values
