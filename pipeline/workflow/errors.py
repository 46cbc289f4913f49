"""The common form of an error that a user can fix: what, got, expected, remedy."""

import errno
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DISK = {
    errno.ENOSPC: ("room on the disk", "free some room, then run the same command again"),
    errno.EDQUOT: ("room within the quota", "free some room, then run the same command again"),
    errno.EROFS: ("a disk that can be written to", "mount it for writing, or work in another copy"),
    errno.EACCES: ("a path that this user may use", "change its owner or mode (chown, chmod)"),
    errno.EPERM: ("a path that this user may use", "change its owner, mode or attributes"),
    errno.EISDIR: ("the name of a file", "move the folder of that name away"),
    errno.ENOTDIR: ("a folder", "move the file of that name away"),
    errno.EEXIST: ("a folder", "move the file of that name away"),
    errno.ENOENT: ("a file or folder that is there", "run in the project's folder, or restore it"),
    errno.ENAMETOOLONG: ("a shorter path", "shorten the name, or move the project up"),
    errno.EFBIG: ("a file within the limits", "raise the limit (ulimit -f), or take another disk"),
    errno.EIO: ("a disk without faults", "look at the system's log, and save what can be saved"),
    errno.EMFILE: ("fewer open files", "raise the limit (ulimit -n)"),
}
"""Error number of a disk operation -> what was expected, and the remedy."""

_SHORT = reprlib.Repr()  # a few aliases in a YAML file can stand for millions of values
_SHORT.maxstring = _SHORT.maxother = 1_000
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 20
_SHORT.maxlevel = 4


def run_command(study: str | None = None) -> str:
    """The command that runs a study in this folder, which may have no Makefile; None: in force."""
    if Path("Makefile").is_file():
        return "make run" + (f" STUDY={study}" if study else "")
    return "snakemake --cores all" + (f" --config study={study}" if study else "")


@dataclass(frozen=True)
class Problem:
    """One problem that a user can fix.

    Args:
        what: its place and subject, such as ``models.tiny-neo-8.blocks``.
        got: the offending value or state, shortened to a line.
        expected: the valid values or states.
        remedy: what to do about it.
    """

    what: str
    got: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        what, got, expected, remedy = map(
            _on_one_line, (self.what, self.got, self.expected, self.remedy)
        )
        return f"{what}\n    got:      {got}\n    expected: {expected}\n    remedy:   {remedy}"


class InputError(Exception):
    """Bad input, found before any work; carries every problem found, not just the first."""

    def __init__(self, *problems: Problem) -> None:
        self.problems: Sequence[Problem] = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} with the input\n" + "\n".join(f"- {p}" for p in problems))


def bad_input(what: str, got: str, expected: str, remedy: str) -> InputError:
    """An InputError of one problem; see `Problem`."""
    return InputError(Problem(what, got, expected, remedy))


def shorten(value: object, width: int = 120) -> str:
    """The value's repr on one line of at most `width` characters."""
    try:
        text = _SHORT.repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        text = f"a {type(value).__name__} too large to be shown"
    return text if len(text) <= width else text[: width - 1] + "…"


def disk_problem(error: BaseException) -> Problem | None:
    """The problem behind a failed disk operation; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in DISK:
        return None
    path = error.filename2 or error.filename or "a file"
    return Problem(str(path), error.strerror or str(error), *DISK[error.errno])


def _on_one_line(text: str) -> str:
    """`text` on one line without control characters, since names come from untrusted files."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
