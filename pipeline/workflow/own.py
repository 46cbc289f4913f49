"""Functions that a user writes in files of a folder beside params.yaml."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pipeline.workflow.errors import InputError
from pipeline.workflow.files import files_of


def own_code(folder: Path) -> str:
    """The digest of all files in a folder of a study's own code; empty without the folder."""
    content, files = hashlib.sha256(), files_of(folder)
    for file in files:
        content.update(f"{file.as_posix()}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return content.hexdigest()[:32] if files else ""


def load_own(name: str, folder: Path, refusal: Callable[[str], InputError]) -> object:
    """What ``FOLDER/FILE.py:NAME`` is, whose file, which the folder must contain, is executed.

    `refusal` makes the error of what was found.

    Raises:
        InputError: no such file within the folder, a file that fails, or nothing of that name.
    """
    path, _, function = name.partition(":")
    file = Path(path)
    if not file.is_file() or not file.resolve().is_relative_to(folder.resolve()):
        raise refusal(f"no file {path} that lies in {folder.resolve()}")
    module = ModuleType(f"own_{folder.name}_{file.stem}")
    try:  # not imported, which would write bytecode into the folder
        code_of = compile(file.read_bytes(), str(file), "exec")
        exec(code_of, vars(module))  # noqa: S102  a study's own code, which its plan names
    except InputError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise refusal(f"{type(error).__name__} on loading {path}: {error}") from error
    if not hasattr(module, function):
        raise refusal(f"nothing of that name in {path}")
    found: object = getattr(module, function)
    return found
