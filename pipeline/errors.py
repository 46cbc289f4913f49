"""The one shape of an error that a user can mend: what, got, expected, remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that a user can mend.

    Args:
        what: where it is and what it is about, such as ``models.tiny-neo-8.blocks``.
        got: the offending value or state, shortened to a line.
        expected: what would have been right.
        remedy: what to do about it.
    """

    what: str
    got: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.what}\n    got:      {self.got}\n    expected: {self.expected}"
            f"\n    remedy:   {self.remedy}"
        )


class InputError(Exception):
    """Bad input, found before any work; carries every problem found, not just the first.

    Args:
        problems: one problem or more.
    """

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("an InputError needs at least one problem")
        self.problems: Sequence[Problem] = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count} with the input\n" + "\n".join(f"- {p}" for p in problems))


def shorten(value: object, width: int = 120) -> str:
    """The value's repr on one line of at most `width` characters."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 1] + "…"
