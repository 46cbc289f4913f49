"""Evaluate the same models again and again in one process: does anything grow?

    python -m tests.faults.soak [--minutes 30]

The commands are those of the stages, with their shards, leases and tables. It prints what the
process holds after each tenth of the rounds; growth beyond noise ends it with status 1.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from contextlib import chdir, redirect_stdout
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil

from pipeline.__main__ import app
from tests.faults.kills import JOBS, prepare

WARM_UP = 5
"""Rounds after which caches are full: of the allocator, of compiled expressions, of templates."""

GROWTH = 1.05
"""Of memory, from the end of the warm-up to the end, that is taken for noise."""


@dataclass(frozen=True)
class Held:
    """What a process and its project hold.

    Args:
        memory: resident, MB.
        descriptors: open files, sockets and pipes.
        threads: of the process.
        files: in the project's folder and in the folder of temporary files.
        objects: that Python's collector knows.
    """

    memory: float
    descriptors: int
    threads: int
    files: int
    objects: int


def held(*folders: Path) -> Held:
    """Now."""
    gc.collect()
    me = psutil.Process()
    files = sum(len(list(folder.rglob("*"))) for folder in folders)
    memory = me.memory_info().rss / 2**20
    return Held(memory, me.num_fds(), me.num_threads(), files, len(gc.get_objects()))


def soak(root: Path, seconds: float) -> list[Held]:
    """What is held after each round of all evaluations.

    Args:
        root: a project as `kills.prepare` leaves it.
        seconds: after which no round begins.
    """
    temporary = root.parent / "temporary"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    rounds = []
    end = time.monotonic() + seconds
    with chdir(root), Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        while time.monotonic() < end:
            for stage, model in JOBS:
                app([stage, model], standalone_mode=False)
            rounds.append(held(root, temporary))
    return rounds


def grown(rounds: list[Held]) -> list[str]:
    """What is more at the end than after the warm-up."""
    before, after = rounds[WARM_UP], rounds[-1]
    problems = []
    for field in fields(Held):
        old, new = getattr(before, field.name), getattr(after, field.name)
        noise = GROWTH if field.name in ("memory", "objects") else 1
        if new > noise * old:
            problems.append(f"{field.name}: {old:.0f} after round {WARM_UP}, {new:.0f} at the end")
    return problems


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = prepare(Path(folder) / "project")
        rounds = soak(project.root, 60 * asked.minutes)
    print("| round | " + " | ".join(field.name for field in fields(Held)) + " |")
    print("|---:|" + "---:|" * len(fields(Held)))
    for number in sorted({WARM_UP, *range(0, len(rounds), -(-len(rounds) // 10)), len(rounds) - 1}):
        print(
            f"| {number} | " + " | ".join(f"{each:.0f}" for each in astuple(rounds[number])) + " |"
        )
    problems = grown(rounds)
    print("\n".join(problems) or "nothing grows")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
