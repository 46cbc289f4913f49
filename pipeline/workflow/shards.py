"""Keeps finished parts of long work, so that a killed stage resumes where it was.

    data/STUDY/partial/STAGE/MODEL/KEY/000000-000041-SHA256.safetensors

The work on a table is cut into shards, consecutive items of about `run.shard_minutes` of work. Each
is written atomically, under a checksum of its content. The key is a checksum of all that determines
the result, including the cuts: after a change of checkpoint, samples, versions or code no shard is
found. An uninterrupted run is cut in the same way, so its table has the same bytes.

DVC deletes a stage's table before the stage runs again, even if DVC was killed after the command
ended and before it recorded the result. So a stage that DVC runs keeps its shards until
`aggregate`, which DVC runs after all tables are committed.

A table may be computed in parts, each by a stage of its own, perhaps on another machine. A part is
a run of consecutive shards, which are the output of its stage:

    data/STUDY/parts/STAGE/MODEL/2-of-8/KEY/000041-000082-SHA256.safetensors

The stage of the table then finds its shards there. One that is missing or damaged is computed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from pipeline.workflow.files import atomic
from pipeline.workflow.interruption import saying

Arrays = Mapping[str, NDArray[Any]]
"""Results by name; the items run along axis 1, as in (interventions, items, …)."""

PARTIAL, PARTS = "partial", "parts"

CPU_RATE = 3e10
"""Operations per second of one thread, measured on the tiny study."""

GPU_RATES = {"a100": (5e12, 3e13), "h100": (1.7e13, 9.9e13)}
"""GPU -> the same in float32, a quarter of the peak, and in half precision, a tenth of it.

The peaks are without sparsity, from NVIDIA's data sheets of the A100 80GB SXM and the H100 SXM.
"""


def operations_a_second(device: str, dtype: str, threads: int) -> float:
    """A rough rate of a device in this precision, with so many threads.

    The device is ``cpu``, one of `GPU_RATES`, or ``cuda``, taken for an A100.
    """
    if device == "cpu":
        return CPU_RATE * threads
    single, half = GPU_RATES["a100" if device == "cuda" else device]
    return single if dtype == "float32" else half


def seconds_a_token(
    parameters: int, interventions: int, device: str, dtype: str, threads: int
) -> float:
    """Estimated seconds per token of a text under all interventions; the same in every run."""
    return 2 * parameters * interventions / operations_a_second(device, dtype, threads)


def cut(seconds: Sequence[float], most: float) -> list[range]:
    """Consecutive items in parts of at most `most` seconds, at least one item each."""
    starts, spent = [0], 0.0
    for number, each in enumerate(seconds):
        if number > starts[-1] and spent + each > most:
            starts.append(number)
            spent = 0.0
        spent += each
    return [range(*ends) for ends in pairwise([*starts, len(seconds)])]


class PartFinishedError(Exception):
    """The shards of one part are complete; other processes compute the rest of the table."""


class Shards:
    """The shards of one table, or of one part of it; `open_shards` gives them.

    Args:
        table: data/STUDY/partial/STAGE/MODEL.
        minutes: approximate minutes of work per shard.
        determined_by: inputs and settings of the table and the digest of its stage, JSON values
            only. The items are added by `results`.
        part: the part to compute, such as ``2-of-8``; None: the whole table.
    """

    def __init__(
        self, table: Path, minutes: float, determined_by: Mapping[str, object], part: str | None
    ) -> None:
        self.folder = table.with_name(f"{table.name}.{part}") if part else table
        self._parts = table.parents[2] / PARTS / table.parent.name / table.name
        self._part, self._seconds, self._determined_by = part, 60 * minutes, determined_by
        self.total = self.reused = self.computed = 0

    def results(
        self,
        work: Callable[[range], Arrays],
        seconds: Sequence[float],
        items: Iterable[object],
    ) -> dict[str, NDArray[Any]]:
        """The results of all items, in their order; existing shards are not computed again.

        Args:
            work: computes the items of these numbers.
            seconds: approximate time of each item.
            items: the input of `work` beyond `determined_by`; each is identified by its `repr`.

        Raises:
            PartFinishedError: this process computes one part, and has done so.
        """
        shards = cut(seconds, self._seconds)
        key = self._key(shards, items)
        self._remove_all_but(key)
        folder = self.folder / key
        if self._part:
            number, of = map(int, self._part.split("-of-"))
            shards = shards[len(shards) * (number - 1) // of : len(shards) * number // of]
        parts = [] if self._part else sorted(self._parts.glob(f"*/{key}"))
        paths = [_sound([folder, *parts], each) for each in shards]
        self.total, self.reused = len(shards), sum(path is not None for path in paths)
        if self.reused:
            print(f"resuming: {self.reused} of {self.total} shards are kept", flush=True)
        whole = []
        with saying(lambda: self._kept(key)):
            for each, found in zip(shards, paths, strict=True):
                whole.append(found or _write(folder, each, work(each)))
                self.computed += found is None
        self.end_part(*whole)
        return _joined(whole)

    def end_part(self, *shards: Path) -> None:
        """Do nothing if this process computes the whole table; else put its shards in place.

        There are none if the table needs no computation.

        Raises:
            PartFinishedError: this process computes one part.
        """
        if self._part is None:
            return
        target = self._parts / self._part
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for shard in shards:
            (target / shard.parent.name).mkdir(exist_ok=True)
            shutil.copy(shard, target / shard.parent.name)
        raise PartFinishedError

    def finish(self) -> None:
        """Remove the shards after the table is written, unless DVC may still rerun the stage."""
        if "DVC_STAGE" not in os.environ:
            _remove(self.folder)

    def told(self) -> dict[str, int]:
        """The number of shards, and the number that were reused; for the note of the cost."""
        return {"total": self.total, "reused": self.reused, "computed": self.computed}

    def _kept(self, key: str) -> str:
        kept = len(list(self.folder.glob(f"{key}/*.safetensors")))
        return f"{kept} of {self.total} shards are kept; the same command goes on"

    def _key(self, parts: Sequence[range], items: Iterable[object]) -> str:
        determined_by = {**self._determined_by, "ends": [part.stop for part in parts]}
        content = hashlib.sha256(json.dumps(determined_by, sort_keys=True).encode())
        for item in items:
            content.update(f"{item!r}\n".encode())
        return content.hexdigest()[:32]

    def _remove_all_but(self, key: str) -> None:
        """Remove shards of other keys, and half-written files of a killed process."""
        for each in self.folder.iterdir():
            if each.is_dir() and each.name != key:
                shutil.rmtree(each)
        for each in self.folder.glob(f"{key}/.*.part"):
            each.unlink()


@contextmanager
def open_shards(
    table: Path, minutes: float, determined_by: Mapping[str, object], part: str | None = None
) -> Iterator[Shards]:
    """Yield the shards of one table, once no other process works on that table or part.

    The enclosed work ends when the part, if there is one, is complete. Arguments: as of `Shards`.
    """
    shards = Shards(table, minutes, determined_by, part)
    with suppress(PartFinishedError), _alone(shards.folder):
        yield shards


def remove_finished(data: Path) -> None:
    """Remove the shards of a study's tables and parts that exist; no stage with shards may run."""
    for folder in (data / PARTIAL).glob("*/*"):
        name, _, part = folder.name.rpartition(".")
        table = data / folder.parent.name / f"{folder.name}.parquet"
        if table.is_file() or (data / PARTS / folder.parent.name / name / part).is_dir():
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the shards of a table, and the folders of stage and study that this empties."""
    shutil.rmtree(folder)
    with suppress(OSError):  # others keep shards
        folder.parent.rmdir()
        folder.parent.parent.rmdir()


def _name(shard: range) -> str:
    return f"{shard.start:06}-{shard.stop:06}"


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _sound(folders: Sequence[Path], shard: range) -> Path | None:
    """The shard of these items in one of the folders; None if it is missing or damaged."""
    for path in (path for each in folders for path in each.glob(f"{_name(shard)}-*.safetensors")):
        with suppress(OSError):
            if path.stem.endswith(f"-{_checksum(path.read_bytes())}"):
                return path
        print(f"{path} is damaged: it is computed again", flush=True)
    return None


def _write(folder: Path, shard: range, arrays: Arrays) -> Path:
    content = safetensors.numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    )
    path = folder / f"{_name(shard)}-{_checksum(content)}.safetensors"
    with atomic(path) as temporary:
        temporary.write_bytes(content)
    return path


def _joined(paths: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """The items of all shards, one array per name; only one shard is in memory beside them."""
    starts = [0]
    for path in paths:
        arrays = safetensors.numpy.load_file(path)
        starts.append(starts[-1] + next(iter(arrays.values())).shape[1])
    whole = {
        name: np.empty((array.shape[0], starts[-1], *array.shape[2:]), array.dtype)
        for name, array in arrays.items()
    }
    for path, ends in zip(paths, pairwise(starts), strict=True):
        for name, array in safetensors.numpy.load_file(path).items():
            whole[name][:, slice(*ends)] = array
    return whole


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold this folder's lock; the kernel drops it when the process dies, however it dies."""
    lock = FileLock(folder / "lock", mode=0o666)
    while not lock.is_locked:
        with suppress(FileNotFoundError):  # its last holder may remove the folder at any time
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                print(f"waiting for the process that works on {folder}", flush=True)
                lock.acquire()
    try:
        yield
    finally:
        lock.release()
