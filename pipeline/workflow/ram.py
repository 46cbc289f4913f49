"""The memory that this process can still get, with the standard library alone on Linux."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Controllers of a control group -> its folder, and where limit, use and cached files stand: of
version 2 and of version 1."""


def free_ram(root: Path = Path("/")) -> int:
    """Bytes that are free on this machine, and in the control groups of this process.

    Containers and SLURM limit the memory of a job by control groups. Cached files count as free,
    since the kernel gives them up first. `root` is of the file system.
    """
    try:
        machine = _numbers(root / "proc/meminfo")["MemAvailable:"] << 10
    except OSError:  # not Linux
        import psutil

        return int(psutil.virtual_memory().available)
    return max(0, min([machine, *_left_by_groups(root)]))


def _numbers(file: Path) -> dict[str, int]:
    """The first word of each line -> the number after it."""
    lines = map(str.split, file.read_text(encoding="ascii").splitlines())
    return {name: int(number) for name, number, *_ in lines}


def _left_by_groups(root: Path) -> Iterator[int]:
    """What each control group of this process, and each one above it, leaves of its limit."""
    own = root / "proc/self/cgroup"
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in _GROUPS:
            continue
        folder, limit, use, cached = _GROUPS[controllers]
        top = root / "sys/fs/cgroup" / folder
        lowest = top / path.lstrip("/")
        for group in (lowest, *lowest.parents):
            with suppress(OSError, ValueError):  # not seen from within a container, or no limit
                most, used = (int((group / name).read_text("ascii")) for name in (limit, use))
                yield most - used + _numbers(group / "memory.stat")[cached]
            if group == top:
                break
