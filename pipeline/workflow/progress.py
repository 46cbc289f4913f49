"""Shows the progress of long work: a bar on a terminal, a plain line now and then in a log."""

import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0

PROGRESS = Path(".snakemake/progress")
"""Where each stage says how far it is, if `board` shows it; the folder is there only then."""


def disable_monitor() -> None:
    """Keep bars, those of libraries too, from starting tqdm's monitor thread.

    The main thread holds tqdm's lock until that thread has started. If a bar is garbage-collected
    in the starting thread, it needs the lock, and both wait for ever.
    Source: tqdm issue 469, whose remedy this is; seen with tqdm 4.70.1 under `datasets`.
    """
    tqdm.monitor_interval = 0


def reporter(label: str, unit: str) -> Callable[[int, int], None]:
    """A progress callback, called with the numbers done and in total; may be called repeatedly.

    The label names the work, the unit, in the plural, what is counted.
    """
    bar = bar_class()(desc=label, unit=f" {unit}")

    def report(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return report


def bar_class() -> type[tqdm]:
    """A class of tqdm's, for a library too: a bar on a terminal, lines in a log."""
    return tqdm if sys.stderr.isatty() else _Lines


def duration(seconds: float) -> str:
    """Seconds in a readable unit, such as ``3.5 h``."""
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86_400:.3g} days"


class _Lines(tqdm):  # type: ignore[misc]
    """A bar that prints a plain line now and then, and none for short work."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._told = self._noted = time.monotonic()
        # tqdm's own output moves a terminal's cursor
        plain = {"ascii": True, "bar_format": None, "leave": False, "file": io.StringIO()}
        always = {"mininterval": 0, "miniters": 1}  # `display` decides
        super().__init__(*args, **{**kwargs, **plain, **always})

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        now = time.monotonic()
        if msg != "" and now - self._noted >= 1:
            self._noted = now
            self._note()
        if msg != "" and now - self._told >= SECONDS_BETWEEN_LINES:  # "" wipes a bar
            self._told = now
            print(msg or str(self), file=sys.stderr, flush=True)
        return True

    def _note(self) -> None:
        """Write how far the stage is to its file; bars of libraries count in units of their own."""
        rate = self.format_dict["rate"] or self.n / max(self.format_dict["elapsed"], 1e-9)
        if "DVC_STAGE" in os.environ and self.total and rate and self.unit.startswith(" "):
            left = duration((self.total - self.n) / rate)
            with suppress(OSError):  # no folder: nobody looks
                (PROGRESS / os.environ["DVC_STAGE"]).write_text(
                    f"{self.n} of {self.total}{self.unit}, {left} left", encoding="utf-8"
                )
