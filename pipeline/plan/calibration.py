"""Measures how fast this device multiplies matrices, from which `outlook` estimates times."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import psutil
import torch

from pipeline.workflow.device import visible

ROWS = {"cpu": 512, "cuda": 8192}
"""Rows of the timed product, about as many as in the engine's own products."""

WIDEST = {"cpu": 1024, "cuda": 8192}
"""Largest width that is timed. A CPU's rate is constant above a few hundred columns, and a CPU
without half precision would take minutes."""

LONG_ENOUGH = 0.05
"""Least seconds of a timed product; the rows are doubled until it takes this long."""

ROUNDS = 3


@dataclass
class Device:
    """The device that an evaluation would take, its memory, and its rates, each measured once.

    Args:
        kind: ``cuda`` or ``cpu``.
        name: for readers.
        free_bytes: of its memory, now.
        threads: of a CPU.
    """

    kind: str
    name: str
    free_bytes: int
    threads: int
    _rates: dict[tuple[str, int, str, int], float] = field(default_factory=dict)

    def rate(self, width: int, dtype: str) -> float:
        """FLOP/s of products of `width` columns here, as `dtype`; NaN if there is no room."""
        return self._rate(self.kind, width, dtype, self.threads)

    def training_rate(self, width: int) -> float:
        """The same for training: on one thread of the CPU, in float32."""
        return self._rate("cpu", width, "float32", 1)

    def _rate(self, kind: str, width: int, dtype: str, threads: int) -> float:
        key = kind, min(width, WIDEST[kind]), dtype, threads
        if key not in self._rates:
            try:
                self._rates[key] = matrix_rate(*key)
            except torch.OutOfMemoryError:  # other processes use this GPU
                self._rates[key] = math.nan
        return self._rates[key]


def this_device(threads: int) -> Device:
    """The device that an evaluation would use here; nothing is leased.

    Args:
        threads: CPU threads of one evaluation.
    """
    if visible() and torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        return Device("cuda", torch.cuda.get_device_name(), free, threads)
    count = "1 thread" if threads == 1 else f"{threads} threads"
    return Device("cpu", f"CPU, {count}", int(psutil.virtual_memory().available), threads)


@torch.inference_mode()
def matrix_rate(kind: str, width: int, dtype: str, threads: int) -> float:
    """FLOP/s of the product of an MLP's first half: (rows, D) times (D, 4D). The best of a few.

    Args:
        kind: ``cuda`` or ``cpu``.
        width: D.
        dtype: torch's name of it.
        threads: of a CPU.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = getattr(torch, dtype)
        weights = torch.ones(width, 4 * width, device=kind, dtype=made)
        rows = 8  # few, since a CPU may be a hundred times slower in half precision
        while True:
            states = torch.ones(rows, width, device=kind, dtype=made)
            _seconds(states, weights)  # the first one also warms up
            if _seconds(states, weights) > LONG_ENOUGH or rows == ROWS[kind]:
                break
            rows *= 2
        best = min(_seconds(states, weights) for _ in range(ROUNDS))
        return 8 * width**2 * rows / best
    finally:
        torch.set_num_threads(before)


def _seconds(states: torch.Tensor, weights: torch.Tensor) -> float:
    """Seconds of one product, until the device has finished it."""
    if states.device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    states @ weights
    if states.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started
