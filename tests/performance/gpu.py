"""What the engine costs on a GPU, at the shapes of real models and in half precision.

    python -m tests.performance.gpu [REPORT] [--only PART ...] [--pairs N] [--tiny]

Needs a CUDA device, torch and transformers, and nothing else; no network, as all weights are
random or trained on the spot. Every row goes to stderr as soon as it is measured, and all tables
so far to REPORT. A row that fails says so, and the others go on. `--tiny` takes tiny shapes, which
a CPU does in a minute: it checks this file, its numbers mean nothing.

Times are on the wall, up to where the device is done. Rivals take turns, and a ratio is that of
two times of one round.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import complete, completion, sweep
from pipeline.interventions.evaluation import Completions
from pipeline.interventions.memory import Journal
from pipeline.interventions.readout import read
from pipeline.interventions.trie import build_trie
from pipeline.interventions.wavefront import run
from pipeline.models.sites import anatomy
from tests.oracle import plain
from tests.performance.common import (
    Shape,
    build,
    compared,
    memorize,
    noted,
    operations,
    rounds,
    samples,
    table,
)

HALF = torch.float16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Cells = tuple[str, dict[str, str]]
"""A table's title, and a row's cells by column."""

_1B = Shape("GPT-NeoX", 2048, 24, 16, samples=64, label="Pythia 1.4B")
_3B = Shape("GPT-NeoX", 2560, 32, 32, samples=32, label="Pythia 2.8B")
_12B = Shape("GPT-NeoX", 5120, 36, 40, samples=16, vocabulary=50_688, label="Pythia 12B")
_SMALL = tuple(Shape(family, 512, 12, 8, samples=64) for family in ("GPT-NeoX", "GPT-Neo"))
_TINY = tuple(
    Shape(family, 48, 4, 4, samples=4, vocabulary=640, prefix=8, suffix=8, context=64, window=4)
    for family in ("GPT-NeoX", "GPT-Neo")
)


# --------------------------------------------------------------------------- measuring


def seconds(work: Callable[[], object]) -> float:
    """Seconds on the wall of one call, until the device is done."""
    release()
    begin = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def release() -> None:
    """Give back memory that is no longer in use, and begin to look for the peak anew.

    What earlier calls left in torch's hands would not be free for the engine, which asks.
    """
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> str:
    """The most memory, GB, that tensors took since the last `release`."""
    return f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if DEVICE == "cuda" else "–"


def rate(work: Callable[[], object]) -> float:
    """Multiplications and additions a second of a call's matrix products."""
    return operations(work) / min(seconds(work) for _ in range(3))


def nothing_made_again() -> mock._patch[mock.Mock]:
    """While it is in force, the engine takes no choice for a near tie."""
    return mock.patch.object(completion, "rounding_error", return_value=-1.0)


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in `dtype`, in place.

    Other than `model.to`, it leaves the rotary frequencies in float32, as loading does.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


# --------------------------------------------------------------------------- what is measured


@torch.inference_mode()
def teacher_forced(shape: Shape, square: int) -> Iterator[Cells]:
    """The pass and its readout, with random weights; `square` is the size of a large matrix."""
    model = build(shape, device=DEVICE, dtype=HALF)
    tokens, interventions = samples(shape, device=DEVICE), sweep(shape.blocks)
    known, trie, read_in = anatomy(model), build_trie(interventions, shape.blocks), tokens[:, :-1]
    targets = tokens[:, -shape.suffix :].expand(trie.branches, -1, -1).flatten()
    nothing = torch.tensor([], dtype=torch.int64, device=DEVICE)
    matrix = torch.randn(square, square, device=DEVICE).to(HALF)

    def forward() -> Tensor:
        return run(known, read_in, trie, last=shape.suffix)

    def stock() -> None:
        model.base_model(read_in, use_cache=False)

    states = forward()[:, :, -shape.suffix :].flatten(0, 2)
    most = rate(lambda: [matrix @ matrix for _ in range(20)])
    works = forward, stock, lambda: read(known, states, targets, nothing)
    shares = [f"{rate(work) / most:.0%}" for work in works]
    spent, one, head = (median(times) for times in rounds(works, seconds, 3))
    seconds(forward)
    yield (
        "Teacher-forced pass",
        {
            "model": shape.name,
            "interventions": f"{len(interventions)}",
            "samples": f"{len(tokens)}",
            "pass, s a sample": f"{spent / len(tokens):.5f}",
            "reading out, s a sample": f"{head / len(tokens):.5f}",
            "a stock forward per intervention / pass": f"{one * len(interventions) / spent:.2f}",
            "pass, share of the matrix rate": shares[0],
            "blocks of a stock forward": shares[1],
            "reading out": shares[2],
            "peak memory of the pass, GB": peak(),
        },
    )


def memorization(shape: Shape, trained: bool, checked: int, pairs: int) -> Iterator[Cells]:
    """The sweep with and without its safeguard against the plain loop, and all against float32.

    Args:
        shape: of the model.
        trained: whether the model recites its samples. With random weights, all rows decode.
        checked: samples that are compared with float32; 0 where both precisions do not fit.
        pairs: rounds of the rivals.
    """
    tokens = samples(shape, distinct=64 if trained else None, device=DEVICE)
    interventions = sweep(shape.blocks)
    if trained:
        model = build(shape, trainable=True, device=DEVICE)
        memorize(model, tokens, shape.suffix, steps=1000, autocast=DEVICE == "cuda")
        in_dtype(model, HALF)
    else:
        model = build(shape, device=DEVICE, dtype=HALF)
    asked = model, tokens, shape.suffix, interventions
    made: dict[str, Completions] = {}
    journal = Journal()  # of the engine's last run

    def engine() -> None:
        nonlocal journal
        journal = Journal()
        made["engine"] = complete(*asked, journal=journal)

    def unguarded() -> None:
        with nothing_made_again():
            made["engine without its safeguard"] = complete(*asked)

    def without_decoding() -> None:
        complete(*asked, decode=False)

    def loop() -> None:
        made["plain loop"] = plain.complete(*asked, len(tokens))

    complete(model, tokens[:2], shape.suffix, interventions[:2])  # before it counts
    plain.complete(model, tokens[:2], shape.suffix, interventions[:2], 2)
    works = engine, unguarded, without_decoding, loop
    ours, bare, cut, slow = rounds(works, seconds, pairs)
    name = f"{shape.name}, {'trained' if trained else 'random'}"
    rows = len(interventions) * len(tokens)
    yield (
        "Memorization sweep",
        {
            "sweep": name,
            "samples": f"{len(tokens)}",
            "exact match": f"{exact(made['engine'], tokens)[0].float().mean():.2f}",
            "near ties": f"{journal.near_ties / rows / shape.suffix:.2%} of choices",
            "within": f"{journal.tolerance:.2g}",
            "rows decided again": f"{journal.decided_again} of {rows}",
            "engine, s": f"{median(ours):.2f}",
            "plain loop / engine": compared(slow, ours),
            "plain loop / engine without its safeguard": compared(slow, bare),
            "plain loop / engine without decoding": compared(slow, cut),
            "halvings": f"{len(journal.halvings)}",
        },
    )
    if checked:
        precise, few = in_dtype(copy.deepcopy(model), torch.float32), tokens[:checked]
        truth = plain.complete(precise, few, shape.suffix, interventions, checked)
        cells = {each: differences(made[each], truth, few) for each in sorted(made)}
        yield (
            "Continuations and exact matches other than in float32",
            {"sweep": name, "compared": f"{len(interventions) * checked}"} | cells,
        )


def exact(made: Completions, tokens: Tensor) -> Tensor:
    """Exact matches (V, N) of what was made of samples (N, P+S), the first of them."""
    few = made.continuation[:, : len(tokens)]
    return (few == tokens[:, -few.shape[-1] :].cpu()).all(-1)


def differences(mine: Completions, truth: Completions, tokens: Tensor) -> str:
    """How many continuations and exact matches differ, and by how much the surest was decided."""
    differ = (mine.continuation[:, : len(tokens)] != truth.continuation).any(-1)
    if not differ.any():
        return "none"
    matches = (exact(mine, tokens) != exact(truth, tokens)).sum()
    return f"{differ.sum()} and {matches}, by at most {truth.min_margin[differ].max():.2g}"


def growth(shape: Shape, counts: Sequence[int]) -> Iterator[Cells]:
    """The cost of the sweep by the number of samples, with random weights."""
    model, interventions = build(shape, device=DEVICE, dtype=HALF), sweep(shape.blocks)
    complete(model, samples(shape, 1, device=DEVICE), shape.suffix, interventions)
    for count in counts:
        tokens, journal = samples(shape, count, device=DEVICE), Journal()
        asked = model, tokens, shape.suffix, interventions
        with nothing_made_again():
            spent = seconds(partial(complete, *asked, journal=journal))
        yield (
            "Growth with the samples, without the safeguard",
            {
                "sweep": shape.name,
                "samples": f"{count}",
                "s a sample": f"{spent / count:.4f}",
                "peak memory, GB": peak(),
                "halvings": f"{len(journal.halvings)}",
            },
        )


# --------------------------------------------------------------------------- all


def parts(tiny: bool, pairs: int) -> dict[str, list[Iterator[Cells]]]:
    """All there is to measure, by part; each yields its rows when it is asked for them."""
    if tiny:
        return {
            "pass": [teacher_forced(each, 256) for each in _TINY],
            "sweep": [memorization(each, known, 2, 1) for each in _TINY for known in (False, True)],
            "growth": [growth(_TINY[0], (1, 4))],
        }
    untrained = ((_1B, 4), (_3B, 4), (_12B, 0))
    return {
        "pass": [teacher_forced(each, 8192) for each in (_1B, _3B, _12B)],
        "sweep": [
            *(memorization(each, True, each.samples, pairs) for each in _SMALL),
            *(memorization(each, False, checked, pairs) for each, checked in untrained),
        ],
        "growth": [growth(_1B, (1, 4, 16, 64, 256)), growth(_SMALL[0], (64, 256, 1024))],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts asked for; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.performance.gpu")
    parser.add_argument("report", nargs="?", type=Path, help="a Markdown file to write")
    parser.add_argument("--only", nargs="+", metavar="PART", help="pass, sweep, growth")
    parser.add_argument("--pairs", type=int, default=3, help="rounds of the rivals")
    parser.add_argument("--tiny", action="store_true", help="check this file, on a CPU too")
    given = parser.parse_args(arguments)
    if not given.tiny and DEVICE == "cpu":
        parser.error("there is no CUDA device; --tiny also runs on a CPU")
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    head = f"# On a GPU\n\n{name}, torch {torch.__version__}, {HALF}, {given.pairs} rounds.\n"
    tables: dict[str, tuple[list[str], list[list[str]]]] = {}

    def add(title: str, cells: dict[str, str]) -> None:
        tables.setdefault(title, (list(cells), []))[1].append(noted(list(cells.values())))
        if given.report:
            given.report.write_text(text(), encoding="utf-8")

    def text() -> str:
        return "\n".join([head, *(table(title, *rest) for title, rest in tables.items())])

    everything = parts(given.tiny, given.pairs)
    for part in given.only or everything:
        for measured in everything[part]:
            try:
                for title, cells in measured:
                    add(title, cells)
            except Exception as error:
                traceback.print_exc()
                add("Failed", {"part": part, "error": f"{type(error).__name__}: {error}"})
    print(text())
    return int("Failed" in tables)


if __name__ == "__main__":
    sys.exit(main())
