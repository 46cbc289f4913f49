"""What the engine costs on a GPU, at the shapes of real models and in half precision.

    python -m tests.performance.gpu [REPORT] [--only PART ...] [--pairs N] [--tiny]

Needs a CUDA device, torch and transformers, and nothing else; no network, as all weights are
random or trained on the spot. Every row goes to stderr as soon as it is measured, and all tables
so far to REPORT. A row that fails says so, and the others go on. `--tiny` takes tiny shapes, which
a CPU does in a minute: it checks this file, its numbers mean nothing.

Times are on the wall, up to where the device is done. Rivals take turns, and a ratio is that of
two times of one round.

Parts: `pass`, the teacher-forced pass alone; `pythia` and `gpt-neo`, the memorization sweep of an
untrained model, where all rows decode from the first token; `trained`, the same of models that
know their samples by heart; `growth`, its cost by the number of samples.
"""

from __future__ import annotations

import argparse
import copy
import gc
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from unittest import mock

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions import precision, reference
from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import sweep
from pipeline.interventions.memory import Journal
from pipeline.interventions.plan import Plan, plan
from pipeline.interventions.readout import read
from pipeline.interventions.wavefront import Sheet, run
from pipeline.models.decoder import Decoder
from pipeline.models.families import adapt
from tests.performance import tuned
from tests.performance.common import build, compared, memorize, noted, rounds, table

HALF = torch.float16


@dataclass(frozen=True)
class Case:
    """A model's shape, and how much goes through it.

    Args:
        name: of the row.
        family: ``GPT-NeoX`` or ``GPT-Neo``.
        width: D.
        blocks: L.
        heads: H.
        vocabulary: V.
        prefix: P.
        suffix: S.
        samples: N, all in one batch.
        window: of GPT-Neo's local attention.
        context: positions that the model has.
    """

    name: str
    family: str
    width: int
    blocks: int
    heads: int
    vocabulary: int
    prefix: int
    suffix: int
    samples: int
    window: int | None = None
    context: int = 2048


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Args:
        passes: for the teacher-forced pass.
        pythia: for the sweep.
        gpt_neo: for the sweep.
        trained: for the sweep after training.
        growth: models whose cost grows with the samples, and how many there are.
        checked: samples of an untrained model that are compared with float32.
        square: size of the matrices that the machine's rate is measured with.
        steps: of training, at most.
        rate: of learning, at most.
    """

    passes: tuple[Case, ...]
    pythia: Case
    gpt_neo: Case
    trained: tuple[Case, ...]
    growth: tuple[tuple[Case, tuple[int, ...]], ...]
    checked: int
    square: int
    steps: int
    rate: float


# Samples are chosen so that keys and values fit into 80 GB: those of the pass, L (L+1) / 2 slots a
# sample, and, where all rows decode, their copies, L (L+5) a sample.
_PYTHIA = Case("Pythia 1.4B", "GPT-NeoX", 2048, 24, 16, 50304, 32, 32, 64)
_SMALL = Case("GPT-NeoX 512x12", "GPT-NeoX", 512, 12, 8, 50304, 32, 32, 128)
REAL = Scale(
    passes=(
        _PYTHIA,
        Case("Pythia 2.8B", "GPT-NeoX", 2560, 32, 32, 50304, 32, 32, 64),
        Case("Pythia 6.9B", "GPT-NeoX", 4096, 32, 32, 50432, 32, 32, 64),
        Case("Pythia 12B", "GPT-NeoX", 5120, 36, 40, 50688, 32, 32, 64),
        Case("GPT-Neo 2.7B", "GPT-Neo", 2560, 32, 20, 50257, 150, 50, 32, window=256),
    ),
    pythia=_PYTHIA,
    gpt_neo=Case("GPT-Neo 1.3B", "GPT-Neo", 2048, 24, 16, 50257, 150, 50, 16, window=256),
    trained=(
        _SMALL,
        Case("GPT-Neo 512x12", "GPT-Neo", 512, 12, 8, 50304, 32, 32, 128, window=256),
    ),
    growth=((_PYTHIA, (1, 2, 4, 8, 16, 32, 64, 128, 256)), (_SMALL, (64, 256, 1024))),
    checked=4,
    square=8192,
    steps=1500,
    rate=1e-3,
)

_TINY_NEOX = Case("tiny GPT-NeoX", "GPT-NeoX", 48, 4, 4, 640, 8, 8, 8, context=64)
_TINY_NEO = Case("tiny GPT-Neo", "GPT-Neo", 48, 4, 4, 640, 12, 6, 4, window=4, context=64)
TINY = Scale(
    passes=(_TINY_NEOX, _TINY_NEO),
    pythia=_TINY_NEOX,
    gpt_neo=_TINY_NEO,
    trained=(_TINY_NEOX, _TINY_NEO),
    growth=((_TINY_NEOX, (1, 4)), (_TINY_NEO, (1, 4))),
    checked=2,
    square=256,
    steps=100,
    rate=6e-3,
)


class Bench:
    """One run: where, how large, and what it has found so far."""

    def __init__(self, device: str, scale: Scale, pairs: int, report: Path | None) -> None:
        self.device, self.scale, self.pairs, self.report = device, scale, pairs, report
        self.tables: dict[str, tuple[list[str], list[list[str]]]] = {}
        self.failed = False

    @property
    def cuda(self) -> bool:
        """Whether it runs on a GPU."""
        return self.device == "cuda"

    def model(self, case: Case, dtype: torch.dtype = HALF) -> PreTrainedModel:
        """An untrained model, in the place of any before it."""
        self.release()
        return build(
            case.family, case.width, case.blocks, heads=case.heads, vocabulary=case.vocabulary,
            context=case.context, window=case.window, device=self.device, dtype=dtype,
            activation="gelu" if case.family == "GPT-NeoX" else "gelu_new",
        )  # fmt: skip

    def tokens(self, case: Case, samples: int | None = None) -> Tensor:
        """Random samples (N, P+S), on the device."""
        generator = torch.Generator().manual_seed(5)
        shape = (samples or case.samples, case.prefix + case.suffix)
        return torch.randint(0, case.vocabulary, shape, generator=generator).to(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Seconds on the wall of one call, until the device is done."""
        self.synchronize()
        begin = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - begin

    def synchronize(self) -> None:
        """Wait until the device is done."""
        if self.cuda:
            torch.cuda.synchronize()

    def fastest(self, work: Callable[[], object], times: int = 3) -> float:
        """Seconds of the fastest call, after one that does not count."""
        self.release()
        work()
        return min(self.seconds(work) for _ in range(times))

    def release(self) -> None:
        """Give back memory that is no longer in use, and begin to look for the peak anew.

        What calls before left in torch's hands would not be free for the engine, which asks.
        """
        gc.collect()
        self.synchronize()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> str:
        """The most memory, GB, that tensors took since the last `release`."""
        return f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if self.cuda else "–"

    @cached_property
    def rate(self) -> float:
        """Multiplications and additions a second of a large square product in half precision."""
        size, repeats = self.scale.square, 20
        left, right = (torch.randn(size, size, device=self.device, dtype=HALF) for _ in range(2))
        out = torch.empty_like(left)

        def work() -> None:
            for _ in range(repeats):
                torch.mm(left, right, out=out)

        return repeats * 2 * size**3 / self.fastest(work, 5)

    def row(self, name: str, measure: Callable[[], Iterator[tuple[str, dict[str, str]]]]) -> None:
        """Add to each table that `measure` gives cells for, a title and (column -> cell)."""
        try:
            for title, cells in measure():
                self.tables.setdefault(title, (["model", *cells], []))[1].append(
                    noted([name, *cells.values()])
                )
                self.write()
        except Exception as error:  # the other rows are worth having
            traceback.print_exc()
            self.failed = True
            text = " ".join(str(error).split())[:200]
            self.tables.setdefault("Failed", (["what", "why"], []))[1].append(
                noted([name, f"{type(error).__name__}: {text}"])
            )
            self.write()

    def about(self) -> str:
        """What it runs on."""
        name = torch.cuda.get_device_name() if self.cuda else f"CPU ({platform.machine()})"
        return (
            f"{name}, torch {torch.__version__}, transformers {transformers.__version__}, "
            f"{str(HALF).removeprefix('torch.')}; a product of two matrices of {self.scale.square} "
            f"by {self.scale.square} runs at {self.rate / 1e12:.3g} TFLOP/s."
        )

    def text(self) -> str:
        """The report so far."""
        tables = [table(title, *rest) for title, rest in self.tables.items()]
        return "\n".join([self.about() + "\n", *tables])

    def write(self) -> None:
        """Write the report so far, if it is to be written."""
        if self.report is not None:
            self.report.write_text(self.text())


# --------------------------------------------------------------------------- the pass


def passes(bench: Bench) -> None:
    """The teacher-forced pass of a whole sweep, and the readout, without keys and values kept."""
    for case in bench.scale.passes:
        bench.row(case.name, lambda case=case: _pass(bench, case))


@torch.inference_mode()
def _pass(bench: Bench, case: Case) -> Iterator[tuple[str, dict[str, str]]]:
    model = bench.model(case)
    decoder, interventions = adapt(model), sweep(case.blocks)
    trie, tokens = plan(interventions, case.blocks), bench.tokens(case)
    read_in = tokens[:, :-1]
    sheet = Sheet.plain(read_in, case.suffix)
    spent = bench.fastest(lambda: run(decoder, sheet, trie))
    peak = bench.peak()
    states = run(decoder, sheet, trie).states
    targets = tokens[:, -case.suffix :].expand(trie.branches, -1, -1).flatten()
    nothing = targets.new_zeros(0)
    head = bench.fastest(lambda: read(decoder, states.flatten(0, 2), targets, nothing))
    stock = bench.fastest(lambda: model.base_model(read_in, use_cache=False))
    flops = len(tokens) * pass_flops(decoder, trie, read_in.shape[1], case.suffix)
    alone = plan(interventions[:1], case.blocks)
    # a stock forward computes all positions in the last block too
    stock_flops = len(tokens) * pass_flops(decoder, alone, read_in.shape[1], read_in.shape[1])
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    yield (
        "Teacher-forced pass",
        {
            "interventions": f"{len(interventions)}",
            "samples": f"{len(tokens)}",
            "pass, s a sample": f"{spent / len(tokens):.5f}",
            "readout, s a sample": f"{head / len(tokens):.5f}",
            "TFLOP a sample": f"{flops / len(tokens) / 1e12:.3g}",
            "share of the matrix rate": f"{flops / spent / bench.rate:.0%}",
            "the same of a stock forward": f"{stock_flops / stock / bench.rate:.0%}",
            "a stock forward per intervention / pass": f"{stock * len(interventions) / spent:.2f}",
            "weights, GB": f"{weights / 1e9:.1f}",
            "peak memory, GB": peak,
        },
    )


def pass_flops(decoder: Decoder, trie: Plan, length: int, wanted: int) -> int:
    """Multiplications and additions of one sample's teacher-forced pass.

    Counted is what the result needs: the products with a block's six weight matrices (12 D^2
    weights, two operations each), and the two of attention over the pairs that a query sees, its
    own position included. Not counted: norms, activations, softmax, biases, residuals, the rotary
    embedding (which the engine does as a product), pairs that a mask hides, embedding and head.

    Args:
        decoder: the model, whose MLP is 4 D wide.
        trie: the plan.
        length: T, positions read.
        wanted: K, positions that the last block computes.
    """
    square, total = 2 * decoder.width**2, 0
    for number, step in enumerate(trie.steps):
        block = decoder.blocks[number]
        rows = wanted if number == len(trie.steps) - 1 else length
        pairs = sum(min(t + 1, block.window or length) for t in range(length - rows, length))
        output, mlp = square * rows, 8 * square * rows
        attends = step.operations.count(None)
        bypassed = len(step.operations) - attends
        total += attends * (3 * square * length + 4 * decoder.width * pairs + output + mlp)
        total += bypassed * (square * rows + output + mlp)  # values alone
        # a fork takes its parent's values, and with a parallel residual its MLP
        total += len(step.forks) * (output + (0 if block.parallel else mlp))
    return total


# --------------------------------------------------------------------------- the sweep


def pythia(bench: Bench) -> None:
    """The memorization sweep of an untrained GPT-NeoX."""
    bench.row(bench.scale.pythia.name, lambda: _untrained(bench, bench.scale.pythia))


def gpt_neo(bench: Bench) -> None:
    """The memorization sweep of an untrained GPT-Neo."""
    bench.row(bench.scale.gpt_neo.name, lambda: _untrained(bench, bench.scale.gpt_neo))


def trained(bench: Bench) -> None:
    """The memorization sweep of models that know their samples by heart."""
    for case in bench.scale.trained:
        bench.row(case.name, lambda case=case: _trained(bench, case))


def _untrained(bench: Bench, case: Case) -> Iterator[tuple[str, dict[str, str]]]:
    yield from _sweep(bench, case, bench.model(case), "untrained", bench.scale.checked)


def _trained(bench: Bench, case: Case) -> Iterator[tuple[str, dict[str, str]]]:
    model = bench.model(case, torch.float32)
    begin = time.perf_counter()
    loss = memorize(
        model, bench.tokens(case), bench.scale.steps, rate=bench.scale.rate,
        batch_size=case.samples, enough=0.01, autocast=bench.cuda,
    )  # fmt: skip
    spent = time.perf_counter() - begin
    print(f"{case.name}: loss {loss:.4f} after {spent:.0f} s", file=sys.stderr, flush=True)
    yield from _sweep(bench, case, in_dtype(model, HALF), "trained", case.samples)


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its weights in `dtype`, in place.

    Other than `model.to`, it leaves the rotary frequencies in float32, as loading does.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


@contextmanager
def nothing_recomputed() -> Iterator[None]:
    """Take every choice of the engine as it is in the working precision."""
    with mock.patch.object(precision, "better", return_value=None):
        yield


def _sweep(
    bench: Bench, case: Case, model: PreTrainedModel, kind: str, checked: int
) -> Iterator[tuple[str, dict[str, str]]]:
    """The engine with and without recomputation against both loops, and all against float32."""
    tokens, interventions = bench.tokens(case), sweep(case.blocks)
    made: dict[str, Tensor] = {}
    journal = Journal()  # of the engine's last run

    def surely() -> None:
        nonlocal journal
        journal = Journal()
        done = complete(model, tokens, case.suffix, interventions, case.samples, journal=journal)
        made["engine"] = done.continuation

    def as_is() -> None:
        with nothing_recomputed():
            done = complete(model, tokens, case.suffix, interventions, case.samples)
        made["engine, nothing recomputed"] = done.continuation

    def plain() -> None:
        done = reference.complete(model, tokens, case.suffix, interventions, case.samples)
        made["plain loop"] = done.continuation

    def by_hand() -> None:
        done = tuned.complete(model, tokens, case.suffix, interventions, case.samples)
        made["tuned loop"] = done.cpu()

    # once before it counts; two interventions show the others all that there is to warm up
    as_is()
    complete(model, tokens[:2], case.suffix, interventions[:2])
    reference.complete(model, tokens, case.suffix, interventions[:2], case.samples)
    tuned.complete(model, tokens, case.suffix, interventions[:2], case.samples)
    works = (as_is, plain, by_hand, surely)
    spent = rounds(works, lambda work: _told(bench, case, work), bench.pairs)
    fast, loop, hand, sure = spent
    known = exact(made["plain loop"], tokens)[0].float().mean()
    rows = len(interventions) * case.samples
    yield (
        f"Memorization sweep, {kind}",
        {
            "samples": f"{case.samples}",
            "baseline exact match": f"{known:.2f}",
            "recomputed": f"{journal.recomputed} of {rows}",
            "within": f"{journal.tolerance:.2g}",
            "halvings": halvings(journal),
            "engine, s": f"{median(sure):.2f}",
            "plain / engine": compared(loop, sure),
            "tuned / engine": compared(hand, sure),
            "nothing recomputed, s": f"{median(fast):.2f}",
            "plain / that": compared(loop, fast),
            "tuned / that": compared(hand, fast),
        },
    )
    precise, few = in_dtype(copy.deepcopy(model), torch.float32), tokens[:checked]
    truth = reference.complete(precise, few, case.suffix, interventions, checked)
    yield (
        f"Continuations and exact matches other than the plain loop's in float32, {kind}",
        {
            "compared": f"{len(interventions) * checked}",
            **{name: differences(made[name][:, :checked], truth, few) for name in sorted(made)},
        },
    )


def _told(bench: Bench, case: Case, work: Callable[[], object]) -> float:
    bench.release()
    spent = bench.seconds(work)
    print(f"{case.name}, {work.__name__}: {spent:.2f} s", file=sys.stderr, flush=True)
    return spent


def exact(continuation: Tensor, tokens: Tensor) -> Tensor:
    """Exact matches (V, N) of continuations (V, N, S), of samples (N, P+S)."""
    return (continuation == tokens[:, -continuation.shape[-1] :].cpu()).all(-1)


def differences(mine: Tensor, truth: reference.Completions, tokens: Tensor) -> str:
    """How many continuations and exact matches differ, and by how much the surest was decided."""
    differ = (mine != truth.continuation).any(-1)
    matches = (exact(mine, tokens) != exact(truth.continuation, tokens)).sum()
    if not differ.any():
        return "none"
    margin = truth.min_margin[differ].max()
    return f"{differ.sum()} and {matches}, by at most {margin:.2g}"


# --------------------------------------------------------------------------- growth


def growth(bench: Bench) -> None:
    """The cost of an untrained model's sweep by the number of samples, nothing recomputed."""
    for case, samples in bench.scale.growth:
        bench.row(case.name, lambda case=case, samples=samples: _growth(bench, case, samples))


def _growth(
    bench: Bench, case: Case, samples: tuple[int, ...]
) -> Iterator[tuple[str, dict[str, str]]]:
    model, interventions = bench.model(case), sweep(case.blocks)
    with nothing_recomputed():
        complete(model, bench.tokens(case, 1), case.suffix, interventions)  # does not count
    for number in samples:
        tokens, journal = bench.tokens(case, number), Journal()

        def work(tokens: Tensor = tokens, journal: Journal = journal) -> None:
            with nothing_recomputed():
                complete(model, tokens, case.suffix, interventions, journal=journal)

        bench.release()
        spent = bench.seconds(work)
        yield (
            "Growth with the samples, nothing recomputed",
            {
                "samples": f"{number}",
                "s": f"{spent:.2f}",
                "s a sample": f"{spent / number:.4f}",
                "peak memory, GB": bench.peak(),
                "halvings": halvings(journal),
            },
        )


def halvings(journal: Journal) -> str:
    """The batches for which there was too little memory: samples before, and after."""
    return ", ".join(f"{before} to {after}" for before, after in journal.halvings) or "none"


PARTS: dict[str, Callable[[Bench], None]] = {
    "pass": passes,
    "pythia": pythia,
    "gpt-neo": gpt_neo,
    "trained": trained,
    "growth": growth,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts asked for; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.performance.gpu")
    parser.add_argument("report", nargs="?", type=Path, help="a Markdown file to write")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--pairs", type=int, default=3, help="rounds of the rivals")
    parser.add_argument("--tiny", action="store_true", help="check this file, on a CPU too")
    given = parser.parse_args(arguments)
    if not (given.tiny or torch.cuda.is_available()):
        parser.error("there is no CUDA device; --tiny also runs on a CPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    bench = Bench(device, TINY if given.tiny else REAL, given.pairs, given.report)
    print(f"{bench.about()}\n", file=sys.stderr, flush=True)
    for name in given.only:
        begin = time.perf_counter()
        PARTS[name](bench)
        spent = time.perf_counter() - begin
        print(f"{name}: {spent:.0f} s in all", file=sys.stderr, flush=True)
    print(bench.text())
    return int(bench.failed)


if __name__ == "__main__":
    sys.exit(main())
