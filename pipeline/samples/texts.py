"""The documents of a user: a text file, or a folder of them."""

import os
import re
from pathlib import Path

from pipeline.samples.table_file import is_running_text, read
from pipeline.workflow.errors import bad_input


def files(path: Path) -> dict[str, Path]:
    r"""Name -> the file of each document, by name; hidden files are left out.

    Args:
        path: a text file, named as the file that it links to; or a folder, whose files are named by
            their place in it. Bytes that are not UTF-8 are written as ``\xff``.

    Raises:
        InputError: there is no file, or one that is no plain text.
    """
    found = {path.resolve().name: path}
    if path.is_dir():
        below = {str(each.relative_to(path)): each for each in path.rglob("*") if each.is_file()}
        found = {name: below[name] for name in sorted(below) if not re.search(r"(^|/)\.", name)}
    odd = [str(each) for each in found.values() if not is_running_text(each)]
    if odd or not found:
        raise bad_input(
            str(path),
            f"a table: {odd[0]}" if odd else "no file",
            "text files",
            "name a text file, or a folder of text files alone",
        )
    return {os.fsencode(at).decode("utf-8", "backslashreplace"): each for at, each in found.items()}


def texts(path: Path) -> dict[str, str]:
    """Name -> the text of each document.

    Raises:
        InputError: as for `files`; or a file that is not UTF-8.
    """
    return {name: str(read(each)["text"][0]) for name, each in files(path).items()}
