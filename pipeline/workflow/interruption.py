"""Ends a command within seconds of SIGTERM or Ctrl-C, with a line that says how to continue.

The main thread exits as soon as it runs Python again, so that its resources are released. It may be
inside a long matrix product, so a thread that the same signal wakes ends the process after a grace
period. Nothing is lost, since all files are written atomically.

A stage whose `dvc` or `snakemake` was killed ends as well: its output would not be used, and DVC
does not run it again while it is running.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

GRACE_SECONDS = 3.0
POLL_SECONDS = 1.0
SIGNALS = (signal.SIGINT, signal.SIGTERM)
AUDIT = "pipeline"
STARTERS = {"dvc", "snakemake", AUDIT}

_lines: list[Callable[[], str]] = [lambda: "what is finished is kept; the same command goes on"]
_telling = threading.RLock()
"""Held while the line is written, so that the other thread waits before it ends the process."""
_told = False


def watch() -> None:
    """End this process on SIGTERM or Ctrl-C from now on; call once, in the main thread.

    A stage of an audit says nothing, since the audit does.
    """
    global _told
    starters = _starters()
    _told = AUDIT in starters.values()
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and `&` in a script, ignore it
            signal.signal(number, _leave)
    threading.Thread(target=_stand_by, args=(read, [*starters]), daemon=True).start()


@contextmanager
def saying(line: Callable[[], str]) -> Iterator[None]:
    """Set the line that is printed if the enclosed work is interrupted."""
    _lines.append(line)
    try:
        yield
    finally:
        _lines.pop()


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    _tell()
    raise SystemExit(128 + number)


def _stand_by(wakeups: int, starters: list[psutil.Process]) -> None:
    while True:
        ready, _, _ = select.select([wakeups], [], [], POLL_SECONDS if starters else None)
        if ready and (number := os.read(wakeups, 1)[0]) in SIGNALS:
            _tell()
            time.sleep(GRACE_SECONDS)
            os._exit(128 + number)
        if not ready and not all(map(_lives, starters)):
            os.kill(os.getpid(), signal.SIGTERM)


def _tell() -> None:
    """Write the line, once."""
    global _told
    with _telling:
        if not _told:
            _told = True
            # past Python's buffers, which the main thread may hold
            os.write(2, f"\ninterrupted: {_lines[-1]()}\n".encode())


def _starters() -> dict[psutil.Process, str]:
    """The `dvc` that runs this command as a stage, and the `snakemake` or audit above it."""
    if "DVC_STAGE" not in os.environ:
        return {}
    found = {}
    for process in psutil.Process().parents():
        try:
            words = process.cmdline()[:3]  # python -m snakemake
        except psutil.Error:
            continue
        for name in STARTERS & {Path(word).name for word in words}:
            found[process] = name
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
