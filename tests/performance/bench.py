"""How much faster the engine is than its rivals, side by side, at the shapes of real models.

    python -m tests.performance.bench [REPORT] [--gpu]

Everything runs on one thread, in one process except for memory, with the rivals taking turns; a
ratio is that of two times of one round. Times are the process's own CPU time, which other work on
the machine disturbs less than a clock on the wall. Takes about 25 minutes on an idle core. With
`--gpu`, sweeps in half precision on a CUDA device, timed on the wall.
"""

import gc
import logging
import multiprocessing
import random
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from transformers import TopKLogitsWarper

from pipeline.interventions import bypassed, complete, completion, decoding, score, sweep, wavefront
from pipeline.interventions.evaluation import Completions
from pipeline.interventions.memory import Journal
from pipeline.interventions.near_ties import Alone
from pipeline.interventions.readout import TOP, read
from pipeline.interventions.wavefront import Engine, run
from pipeline.measure.windows import Document, measure
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

HEAD = """# How fast

Written by `make bench`. Times are CPU times on one thread; ratios are medians and ranges of three
rounds in which the rivals take turns. *Plain loop*: one forward and one `generate` an intervention,
all samples in one batch. *Engine*: all interventions in one pass, then only rows that go wrong are
decoded; *without decoding*, no row is, and a continuation ends with its first wrong token.
*Trained* models recite their samples, which are of 64 different tokens so that attention is needed
for that; the others have random weights. Samples are random, of 32 + 32 tokens. The interventions
are the baseline, each block and each quartile. Shapes are width x blocks. The engine tries a model
before it is first used; that does not count. *Safeguard*: measuring the rounding error, and making
choices that nearly tie again.
"""
PAIRS = 3
NEOX, NEO = (Shape(family, 512, 6, heads=8, samples=8) for family in ("GPT-NeoX", "GPT-Neo"))
PYTHIA = Shape("GPT-NeoX", 768, 12, heads=12, samples=4)
SMOLLM = Shape("Llama", 576, 30, heads=9, samples=2, vocabulary=49_152, groups=3, inner=1536)
SWEEPS = ((NEOX, True), (NEO, True), (NEOX, False), (NEO, False), (PYTHIA, False), (SMOLLM, False))
LARGER = (NEOX, 32), (PYTHIA, 8)  # samples for peak memory: as many as fill the engine's budget


_SMALL = tuple(Shape(family, 512, 12, 8, samples=64) for family in ("GPT-NeoX", "GPT-Neo"))
_BILLIONS = (
    Shape("GPT-NeoX", 2048, 24, 16, samples=64, label="Pythia 1.4B"),
    Shape("GPT-NeoX", 2560, 32, 32, samples=32, label="Pythia 2.8B"),
    Shape("GPT-NeoX", 5120, 36, 40, samples=16, vocabulary=50_688, label="Pythia 12B"),
)
ON_GPU = (*((shape, True) for shape in _SMALL), *((shape, False) for shape in _BILLIONS))


def seconds(work: Callable[[], object]) -> float:
    """Seconds of one call: of the CPU, or on the wall where there is a GPU that may work."""
    clock = time.perf_counter if torch.cuda.is_initialized() else time.process_time
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()  # the engine asks for the memory that is free
    begin = clock()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock() - begin


# --------------------------------------------------------------------------- memorization

PASS, READOUT, BODY, HEAD_OF, SAFEGUARD, REST = PARTS = (
    "pass", "reading out", "decoding, blocks", "decoding, head", "safeguard", "the rest",
)  # fmt: skip
CALLED = (
    (wavefront, "run", PASS),
    (wavefront, "read", READOUT),
    (decoding, "decode", BODY),
    (decoding, "choose", HEAD_OF),
    (completion, "rounding_error", SAFEGUARD),
    *((Alone, name, SAFEGUARD) for name in ("argmax", "path", "continuation")),
)
"""What the engine calls, by the names that it calls it by."""


@contextmanager
def timed_by_part(spent: dict[str, float]) -> Iterator[None]:
    """Add the CPU seconds of each part to `spent`; what a part calls for itself is its own."""
    inside, since = [REST], time.process_time()

    def switch() -> None:
        nonlocal since
        now = time.process_time()
        spent[inside[-1]] += now - since
        since = now

    def timed(part: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            switch()
            inside.append(SAFEGUARD if SAFEGUARD in inside else part)
            try:
                return function(*args, **kwargs)
            finally:
                switch()
                inside.pop()

        return call

    with ExitStack() as stack:
        for owner, name, part in CALLED:
            wrapped = timed(part, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, wrapped))
        yield
        switch()


def memorization(shape: Shape, trained: bool, gpu: bool = False) -> tuple[list[str], list[str]]:
    """Two rows: the sweep against the plain loop, and where the engine's time goes."""
    device, half = ("cuda", torch.float16) if gpu else ("cpu", torch.float32)
    dtype = torch.float32 if trained else half
    model = build(shape, trainable=trained, device=device, dtype=dtype)
    interventions = sweep(shape.blocks)
    tokens = samples(shape, distinct=64 if trained else None, device=device)
    name = f"{shape.name}, {'trained' if trained else 'random'}"
    if trained:
        steps = memorize(model, tokens, shape.suffix, steps=1000 if gpu else 200, autocast=gpu)
        print(f"{name}: recites after {steps} steps", file=sys.stderr, flush=True)
        for parameter in model.parameters():  # the rotary frequencies stay in float32
            parameter.data = parameter.data.to(half)
    asked = model, tokens, shape.suffix, interventions
    made: dict[str, Completions] = {}
    spent: dict[str, float] = defaultdict(float)
    journal = Journal()

    def loop() -> None:
        made["plain"] = plain.complete(*asked, shape.samples)

    def engine() -> None:
        nonlocal journal
        journal = Journal()
        with timed_by_part(spent):
            made["engine"] = complete(*asked, journal=journal)

    def without_decoding() -> None:
        made["cut"] = complete(*asked, decode=False)

    complete(model, tokens[:1], shape.suffix, interventions[:1])  # tries the model
    slow, fast, cut = rounds((loop, engine, without_decoding), seconds, PAIRS)

    truth = made["plain"]
    surely = truth.min_margin > journal.tolerance
    assert surely.float().mean() > (0 if gpu else 0.5), (
        f"{name}: near ties up to {journal.tolerance:.2g}"
    )
    require_equal(name, made["engine"].continuation[surely], truth.continuation[surely])
    short = made["cut"].continuation[surely]
    require_equal(name, short, truth.continuation[surely].where(short >= 0, -1))

    right = (
        (made["engine"].continuation == tokens[:, shape.prefix :].cpu()).long().cumprod(-1).sum(-1)
    )
    ratios = [compared(slow, fast), compared(slow, cut)]
    matched = f"{(right[0] == shape.suffix).float().mean():.2f}"
    decodes = f"{(right < shape.suffix - 1).float().mean():.0%}"
    shares = [f"{spent[part] / sum(spent.values()):.0%}" for part in PARTS]
    ties = [f"{journal.near_ties} of {right.numel() * shape.suffix}", f"{journal.decided_again}"]
    return noted([name, matched, decodes, *ratios]), noted([name, *shares, *ties])


def require_equal(name: str, ours: Tensor, theirs: Tensor) -> None:
    """Raise where tokens differ."""
    wrong = int((ours != theirs).any(-1).sum())
    assert not wrong, f"{name}: {wrong} of {len(ours)} continuations differ from the plain loop's"


# --------------------------------------------------------------------------- benchmarks

TASKS = {  # questions, choices, tokens of the context and of a continuation
    "arc_easy": (3, 4, 28, 4),
    "hellaswag": (1, 4, 55, 22),
    "piqa": (4, 2, 14, 20),
    "lambada_openai": (4, 1, 75, 2),
    "wikitext": (1, 1, 1, 200),
}


def requests_like(task: str, vocabulary: int) -> list[tuple[list[int], list[int]]]:
    """Random requests of the task's shape."""
    rng = random.Random(task)
    questions, choices, context, continuation = TASKS[task]

    def text(length: float, spread: float) -> list[int]:
        length = max(1, round(rng.gauss(length, spread)))
        return [rng.randrange(1, vocabulary) for _ in range(length)]

    made = []
    for _ in range(questions):
        shared = text(context, context / 4 if context > 1 else 0)
        made += [(shared, text(continuation, continuation / 8)) for _ in range(choices)]
    return made


def benchmarks(shape: Shape) -> Iterator[list[str]]:
    """A row a task: its requests against lm-eval's HFLM, once an intervention."""
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model, interventions = build(shape), sweep(shape.blocks)
    words = {str(i): i for i in range(shape.vocabulary)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")),
        eos_token="0", pad_token="0", unk_token="0",
    )  # fmt: skip
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns of a model that is handed over
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=32, device="cpu")
    made: dict[str, Tensor] = {}
    for task in TASKS:
        requests = requests_like(task, shape.vocabulary)
        items = [((str(i), ""), *request) for i, request in enumerate(requests)]

        def engine(requests: Sequence[tuple[list[int], list[int]]] = requests) -> None:
            made["engine"] = score(model, requests, interventions).log_prob

        def hflm(items: Sequence[object] = items) -> None:
            answers = []
            for intervention in interventions:
                with bypassed(model, intervention):
                    told = lm._loglikelihood_tokens(items, disable_tqdm=True)
                answers.append([log_prob for log_prob, _ in told])
            made["hflm"] = torch.tensor(answers, dtype=torch.float64)

        score(model, requests[:1], interventions[:1])
        fast, slow = rounds((engine, hflm), seconds, PAIRS)
        torch.testing.assert_close(made["engine"], made["hflm"], atol=1e-3, rtol=0)
        yield noted([f"{shape.name}, {task}", compared(slow, fast)])


# --------------------------------------------------------------------------- memory


def peak(engine: bool, shape: Shape, count: int) -> float:
    """Most memory (MB) that a sweep takes on top of the model itself."""
    torch.set_num_threads(1)
    model, tokens, interventions = build(shape), samples(shape, count), sweep(shape.blocks)
    work: Callable[..., object] = complete
    if not engine:
        # the loop takes no more for more interventions
        work, interventions = partial(plain.complete, batch_size=count), interventions[:2]
    # once before it counts: libraries load what they need at first use
    work(model, tokens[:1], shape.suffix, interventions[:1])
    before = high_water()
    work(model, tokens, shape.suffix, interventions)
    return high_water() - before


def high_water() -> float:
    """The most memory (MB) that this process has taken so far."""
    status = Path("/proc/self/status")
    if not status.exists():  # macOS, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    # not Linux's ru_maxrss, which begins with what the parent process had taken
    line = next(each for each in status.read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def memory(shape: Shape, count: int) -> list[str]:
    """One row: peak memory of engine and plain loop, each in a process of its own."""
    row = [shape.name, f"{count}"]
    for engine in (True, False):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row.append(f"{pool.apply(peak, (engine, shape, count)):.0f} MB")
    return noted(row)


# --------------------------------------------------------------------------- matrix products


@torch.inference_mode()
def matrix_rate(shape: Shape) -> list[str]:
    """One row: share of the machine's matrix-product rate, engine and stock model by turns."""
    model, tokens = build(shape), samples(shape)
    known = anatomy(model)
    engine = Engine(known, sweep(shape.blocks))
    read_in, nothing = tokens[:, :-1], torch.tensor([], dtype=torch.int64)
    states = run(engine, read_in, last=shape.suffix)[:, :, -shape.suffix :].flatten(0, 2)
    targets = tokens[:, -shape.suffix :].expand(engine.trie.branches, -1, -1).flatten()
    few = states[: shape.samples * shape.suffix]
    works = (
        lambda: run(engine, read_in, last=shape.suffix),
        lambda: model.base_model(read_in, use_cache=False),
        lambda: read(known, states, targets, nothing),
        lambda: model.get_output_embeddings()(few),
    )
    size = 1024
    square = torch.randn(size, size)
    spent = rounds((lambda: square @ square, *works), seconds, PAIRS)
    most, *rates = (
        count / min(times)
        for count, times in zip((2 * size**3, *map(operations, works)), spent, strict=True)
    )
    return noted([shape.name, *(f"{rate / most:.0%}" for rate in rates)])


# --------------------------------------------------------------------------- documents

DOCUMENT = Shape("GPT-NeoX", 512, 6, heads=8, samples=1)
LENGTHS, DOCUMENT_STRIDE, LOOPED = (32, 50, 100), 8, 8


def documents(length: int) -> list[str]:
    """Every window of a document, rolling and exact, against a loop over windows.

    The loop reads one window after the other with the stock model, and takes log p in full and
    top-40 of the suffix; `LOOPED` windows of it are timed.
    """
    model, size = build(DOCUMENT), 15 * length
    tokens = torch.randint(DOCUMENT.vocabulary, (size,), generator=torch.manual_seed(0))
    book = Document("book", tokens.numpy(), torch.arange(2 * size).view(-1, 2).numpy())
    top, at = TopKLogitsWarper(top_k=TOP), torch.arange(length)
    count = len(range(0, size - 2 * length + 1, DOCUMENT_STRIDE))

    def read(exact: int) -> None:
        measure(model, [book], length, length, stride=DOCUMENT_STRIDE, exact=exact)

    def loop() -> None:
        for start in range(0, LOOPED * DOCUMENT_STRIDE, DOCUMENT_STRIDE):
            row = tokens[start : start + 2 * length]
            with torch.inference_mode():
                logits = model(row[None]).logits[0, -length - 1 : -1]
                for each in (logits, top(None, logits)):
                    each.log_softmax(-1)[at, row[-length:]].sum().item()

    read(0)  # tries the model
    looped, rolling, both = rounds((loop, partial(read, 0), partial(read, LOOPED)), seconds, PAIRS)
    exact = [a - b for a, b in zip(both, rolling, strict=True)]
    whole = [each * count / LOOPED for each in looped]
    return noted([f"{length} + {length}", compared(whole, rolling), compared(looped, exact)])


# --------------------------------------------------------------------------- all


def main() -> None:
    """Print the tables, and write those so far to the file named on the command line."""
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    gpu = "--gpu" in arguments
    reports = [Path(argument) for argument in arguments if argument != "--gpu"]
    texts = [f"# {torch.cuda.get_device_name()}\n" if gpu else HEAD]

    def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        texts.append(table(title, head, rows))
        print(texts[-1], flush=True)
        for report in reports:
            report.write_text("\n".join(texts), encoding="utf-8")

    wanted = [(*each, True) for each in ON_GPU] if gpu else [(*each, False) for each in SWEEPS]
    sweeps, shares = zip(*(memorization(*each) for each in wanted), strict=True)
    head = ["model", "exact match", "rows that decode"]
    head += ["plain loop / engine", "plain loop / engine without decoding"]
    show("Memorization sweep", head, sweeps)
    show("Where the engine's time goes", ["model", *PARTS, "near ties", "decided again"], shares)
    if gpu:
        return
    rows = [row for shape in (NEOX, NEO) for row in benchmarks(shape)]
    show("Benchmarks", ["requests", "HFLM per intervention / engine"], rows)
    head = ["prefix + suffix", "loop over windows / rolling", "loop over windows / exact"]
    show("Windows of a document, one in 8 tokens", head, [documents(each) for each in LENGTHS])
    rows = [memory(*each) for each in LARGER]
    show("Peak memory", ["model", "samples", "engine", "plain loop"], rows)
    head = ["model", "pass", "blocks of a stock forward", "reading out", "head of a stock forward"]
    rows = [matrix_rate(shape) for shape in (NEOX, PYTHIA)]
    show("Share of the matrix-product rate", head, rows)


if __name__ == "__main__":
    main()
