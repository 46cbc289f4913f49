"""How far long work is: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


def reporter(label: str, unit: str) -> Callable[[int, int], None]:
    """A function to be called with what is done and what there is in all, as often as one likes.

    Args:
        label: what is being worked at.
        unit: what is counted, in the plural.
    """
    if sys.stderr.isatty():
        return _bar(label, unit)
    return _lines(label, unit)


def _bar(label: str, unit: str) -> Callable[[int, int], None]:
    bar = tqdm(desc=label, unit=f" {unit}")

    def report(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return report


def _lines(label: str, unit: str) -> Callable[[int, int], None]:
    started = told = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if done < total and now - told < SECONDS_BETWEEN_LINES:
            return
        told = now
        rate = done / max(now - started, 1e-9)
        print(
            f"{label}: {done} of {total} {unit}, {rate:.3g} a second, "
            f"{(total - done) / max(rate, 1e-9):.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return report
