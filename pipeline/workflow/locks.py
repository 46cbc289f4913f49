"""Locks for one run at a time in a checkout: DVC's, and one that the kernel drops."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from dvc.exceptions import NotDvcRepoError
from dvc.lock import LockError, make_lock
from dvc.repo import Repo
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, _edit_rwlock, rwlock
from dvc.scm import SCMError
from filelock import FileLock, Timeout

from pipeline.workflow.errors import bad_input

TURN = Path(".snakemake/turn")
LOCKS = Path(".snakemake/locks")

_turn: FileLock | None = None


def opened() -> Repo:
    """DVC's repository in this folder; waits for another command that holds its lock.

    Raises:
        InputError: the folder is no git repository, or not DVC's.
    """
    try:
        repo = Repo(".", _wait_for_lock=True)
    except (NotDvcRepoError, SCMError) as error:
        raise bad_input(
            str(Path.cwd()),
            str(error),
            "a clone of the project's git repository, in which DVC works",
            "clone it with git; an unpacked archive does not work",
        ) from error
    _remove_damaged_list(repo)
    return repo


def _hardlink(repo: Repo) -> bool:
    return bool(repo.config["core"].get("hardlink_lock", False))


def _remove_damaged_list(repo: Repo) -> None:
    """Remove DVC's list of locks where a killed DVC has cut it short.

    DVC writes it in place, several times a stage, and runs no other stage where it cannot read it.
    It waits 3 s for the lock of the list and then fails, so a whole list is not locked here.
    """
    folder = Path(repo.tmp_dir)
    if not _damaged(folder / RWLOCK_FILE):
        return
    with make_lock(
        str(folder / RWLOCK_LOCK), tmp_dir=repo.tmp_dir, hardlink_lock=_hardlink(repo), wait=True
    ):  # no other process is writing it
        if _damaged(folder / RWLOCK_FILE):
            (folder / RWLOCK_FILE).unlink()


def _damaged(listed: Path) -> bool:
    """Whether the list is cut short, or is being written."""
    try:
        json.loads(listed.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    return False


@contextmanager
def naming_the_holder() -> Iterator[None]:
    """Turn DVC's error about a locked repository into an InputError that names the holder."""
    try:
        yield
    except LockError as error:
        busy, _, holders = str(error).partition("\n\n")[0].partition("\n")
        raise bad_input(
            "this checkout",
            f"{busy} {holders.strip()}",
            "no other run at work in it",
            "when that has ended, give the same command again",
        ) from error


def _alive(entry: dict[str, Any]) -> bool:
    """Whether the process in an entry of DVC's list of locks still runs the command in it."""
    try:
        command = psutil.Process(entry["pid"]).cmdline()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    # what follows the program: a script after the interpreter, or `-m NAME`; paths may have spaces
    arguments = command[3 if command[1:2] in (["-m"], ["-c"]) else 2 :]
    return bool(arguments) and entry["cmd"].endswith(" ".join(["", *arguments]))


def _drop_leftovers(repo: Repo) -> None:
    """Remove from DVC's list of locks what a killed run left there.

    DVC does so unless a process has the same id. In a container that is started again, ids repeat.
    """
    with _edit_rwlock(repo.tmp_dir, repo.fs, _hardlink(repo)) as locks:
        written, read = locks["write"], locks["read"]
        locks["write"] = {path: entry for path, entry in written.items() if _alive(entry)}
        alive = {
            path: [entry for entry in entries if _alive(entry)] for path, entries in read.items()
        }
        locks["read"] = {path: entries for path, entries in alive.items() if entries}


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock a file that stages depend on, to write it while no stage that reads it runs or starts.

    Raises:
        InputError: such a stage runs, under either engine; or there is no repository.
    """
    repo = opened()
    command, written = " ".join(sys.argv), [str(path.absolute())]
    with ExitStack() as stack:
        with naming_the_holder():
            _drop_leftovers(repo)
            lock = rwlock(repo.tmp_dir, repo.fs, command, [], written, _hardlink(repo))
            stack.enter_context(lock)
        yield


def take_turn() -> None:
    """Become the only run in this checkout, until this process ends, however it ends.

    Snakemake's own lock remains when it is killed and would have to be removed by hand; the kernel
    drops this one. The next run that takes it removes Snakemake's leftover locks.

    Raises:
        InputError: another run is active.
    """
    TURN.parent.mkdir(exist_ok=True)
    global _turn
    _turn = FileLock(TURN, mode=0o666)  # held to the end
    try:
        _turn.acquire(blocking=False)
    except Timeout:
        raise bad_input(
            "this checkout",
            f"a run is at work in it: {TURN.read_text()}",
            "one at a time",
            "when that has ended, give the same command again",
        ) from None
    except OSError:  # a file system without locks: only Snakemake's own lock applies
        return
    # in place, so that the lock stays on this file
    TURN.write_text(f"process {os.getpid()} on {platform.node()}")
    shutil.rmtree(LOCKS, ignore_errors=True)
    LOCKS.mkdir()
