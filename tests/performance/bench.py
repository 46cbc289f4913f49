"""How much faster the engine is than its rivals, each at its own best batch, side by side.

    python -m tests.performance.bench [REPORT] [--gpu]

Everything runs on one thread, in one process except for memory, with the rivals taking turns; a
ratio is that of two times of one round, per sample and intervention. Times are the process's own
CPU time, which other work on the machine disturbs less than a clock on the wall. Takes 70 minutes
on an idle core, and 8 GB. With `--gpu`, sweeps in half precision on a CUDA device, timed on
the wall.
"""

import gc
import logging
import multiprocessing
import random
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
from pipeline.interventions.interventions import Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.near_ties import Alone
from pipeline.interventions.readout import TOP, read
from pipeline.interventions.wavefront import Engine, run
from pipeline.measure.windows import Document, measure
from pipeline.models.sites import anatomy
from tests.faults.memory import high_water
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

Written by `make bench`. Times are CPU times on one thread; ratios are medians and ranges of the
rounds in which the rivals take turns, per sample and intervention. *Loop*: one forward and one
`generate` an intervention with stock transformers. It is timed for the baseline, one block and one
quarter, with as many samples in a batch as are fastest of 1, 8, 32 and 128. *Engine*: all
interventions in one pass at its own choice of batch, then only rows that go wrong are decoded;
*without decoding*, no row is, and a continuation ends with its first wrong token. *Limit*: the same
ratio of counted operations of matrix products, which an engine at the loop's rate would reach.
*Trained* models recite their samples, which are of 64 different tokens so that attention is needed
for that; the others have random weights. Samples are random, of 32 + 32 tokens. The interventions
are the baseline, each block and each quarter. Shapes are width x blocks, with a vocabulary of about
50,000. The engine tries a model before it is first used; that does not count. *Safeguard*:
measuring the rounding error, and making choices that nearly tie again.
"""
BATCHES = (1, 8, 32, 128)
PAIRS = 3
NEOX, NEO = (Shape(family, 512, 6, heads=8, samples=32) for family in ("GPT-NeoX", "GPT-Neo"))
PYTHIA = Shape("GPT-NeoX", 768, 12, heads=12, samples=32)
SMOLLM = Shape("Llama", 576, 30, heads=9, samples=8, vocabulary=49_152, groups=3, inner=1536)
BILLION = Shape("GPT-NeoX", 2048, 24, heads=16, samples=8)
SWEEPS = (
    *((shape, trained, PAIRS) for trained in (True, False) for shape in (NEOX, NEO)),
    *((shape, False, 1) for shape in (PYTHIA, SMOLLM, BILLION)),
)
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


def some(interventions: Sequence[Intervention]) -> list[int]:
    """The places of the baseline, one block and one quarter, by which a loop is timed."""
    return [0, len(interventions) // 2, len(interventions) - 1]


def best_batch(work: Callable[[int], object], most: int) -> int:
    """The size of a batch, at most `most`, at which `work` takes least time for each sample."""
    sizes = [size for size in BATCHES if size <= most]
    return min(sizes, key=lambda size: seconds(partial(work, size)) / size)


def memorization(
    shape: Shape, trained: bool, pairs: int, gpu: bool = False
) -> tuple[list[str], list[str]]:
    """Two rows: the sweep against the loop, and where the engine's time goes."""
    device, half = ("cuda", torch.float16) if gpu else ("cpu", torch.float32)
    dtype = torch.float32 if trained else half
    model = build(shape, trainable=trained, device=device, dtype=dtype)
    interventions = sweep(shape.blocks)
    chosen = some(interventions)
    tokens = samples(shape, distinct=64 if trained else None, device=device)
    many = samples(shape, max(BATCHES), device=device)
    name = f"{shape.name}, {'trained' if trained else 'random'}"
    if trained:
        steps = memorize(model, tokens, shape.suffix, steps=1000 if gpu else 400, autocast=gpu)
        print(f"{name}: recites after {steps} steps", file=sys.stderr, flush=True)
        for parameter in model.parameters():  # the rotary frequencies stay in float32
            parameter.data = parameter.data.to(half)
    made: dict[str, Completions] = {}
    spent: dict[str, float] = defaultdict(float)
    journal = Journal()

    def one(size: int) -> Completions:
        return plain.complete(model, many[:size], shape.suffix, interventions[:1], size)

    # a larger batch of a large model takes minutes, and gains nothing on one thread
    size = best_batch(one, 8 if shape.width > 1024 and not gpu else max(BATCHES))
    rows = torch.cat([tokens, many])[: max(size, shape.samples)]

    def loop() -> None:
        edits = [interventions[i] for i in chosen]
        made["plain"] = plain.complete(model, rows, shape.suffix, edits, size)

    def engine(tokens: Tensor = tokens) -> None:
        nonlocal journal
        journal = Journal()
        with timed_by_part(spent):
            made["engine"] = complete(model, tokens, shape.suffix, interventions, journal=journal)

    def without_decoding(tokens: Tensor = tokens) -> None:
        made["cut"] = complete(model, tokens, shape.suffix, interventions, decode=False)

    few = tokens[: min(4, shape.samples)]
    counted = [partial(plain.complete, model, few, shape.suffix, interventions, len(few))]
    counted += [partial(each, few) for each in (engine, without_decoding)]
    complete(model, tokens[:1], shape.suffix, interventions[:1])  # tries the model
    most, least, less = (operations(work) if shape.width < 1024 else 0 for work in counted)
    spent.clear()
    slow, fast, cut = rounds((loop, engine, without_decoding), seconds, pairs)
    slow = [each / len(rows) / len(chosen) * shape.samples * len(interventions) for each in slow]

    truth = made["plain"]
    surely = truth.min_margin[:, : shape.samples] > journal.tolerance
    assert surely.float().mean() > (0 if gpu else 0.5), (
        f"{name}: near ties up to {journal.tolerance:.2g}"
    )
    looped = truth.continuation[:, : shape.samples]
    require_equal(name, made["engine"].continuation[chosen][surely], looped[surely])
    short = made["cut"].continuation[chosen][surely]
    require_equal(name, short, looped[surely].where(short >= 0, -1))

    right = (
        (made["engine"].continuation == tokens[:, shape.prefix :].cpu()).long().cumprod(-1).sum(-1)
    )
    ratios = [f"{size}"]
    for times, count in ((fast, least), (cut, less)):
        ratios += [compared(slow, times), f"{most / count:.2f}" if count else "not counted"]
    matched = f"{(right[0] == shape.suffix).float().mean():.2f}"
    decodes = f"{(right < shape.suffix - 1).float().mean():.0%}"
    shares = [f"{spent[part] / sum(spent.values()):.0%}" for part in PARTS]
    ties = [f"{journal.near_ties} of {right.numel() * shape.suffix}", f"{journal.decided_again}"]
    return (
        noted([name, f"{shape.samples}", matched, decodes, *ratios]),
        noted([name, *shares, *ties]),
    )


def require_equal(name: str, ours: Tensor, theirs: Tensor) -> None:
    """Raise where tokens differ."""
    wrong = int((ours != theirs).any(-1).sum())
    assert not wrong, f"{name}: {wrong} of {len(ours)} continuations differ from the plain loop's"


# --------------------------------------------------------------------------- benchmarks

TASKS = {  # questions, choices, tokens of the context and of a continuation
    "arc_easy": (16, 4, 28, 4),
    "hellaswag": (8, 4, 55, 22),
    "piqa": (32, 2, 14, 20),
    "lambada_openai": (64, 1, 75, 2),
    "wikitext": (8, 1, 1, 200),
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
    chosen = some(interventions)
    made: dict[str, Tensor] = {}
    for task in TASKS:
        requests = requests_like(task, shape.vocabulary)
        items = [((str(i), ""), *request) for i, request in enumerate(requests)]

        def hflm(size: int, places: Sequence[int], items: Sequence[object] = items) -> None:
            lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=size, device="cpu")
            answers = []
            for place in places:
                with bypassed(model, interventions[place]):
                    told = lm._loglikelihood_tokens(items, disable_tqdm=True)
                answers.append([log_prob for log_prob, _ in told])
            made["hflm"] = torch.tensor(answers, dtype=torch.float64)

        def engine(requests: Sequence[tuple[list[int], list[int]]] = requests) -> None:
            made["engine"] = score(model, requests, interventions).log_prob

        sizes = [size for size in BATCHES if size <= len(items)]
        times = [seconds(partial(hflm, size, [0])) for size in sizes]
        size = sizes[times.index(min(times))]
        score(model, requests[:1], interventions[:1])
        fast, slow = rounds((engine, partial(hflm, size, chosen)), seconds, PAIRS)
        share = len(interventions) / len(chosen)
        slow = [each * share for each in slow]
        torch.testing.assert_close(made["engine"][chosen], made["hflm"], atol=1e-3, rtol=0)
        most, least = operations(partial(hflm, size, chosen)), operations(engine)
        limit = f"{most * share / least:.2f}"
        yield noted(
            [f"{shape.name}, {task}", f"{len(items)}", f"{size}", compared(slow, fast), limit]
        )


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
LENGTHS, DOCUMENT_STRIDE, LOOPED = (32, 50, 100), 8, 32


def documents(length: int) -> list[str]:
    """Every window of a document, rolling and exact, against a loop over windows.

    The loop reads windows in its best batch with the stock model, and takes log p in full and
    top-40 of the suffix; `LOOPED` windows of it are timed.
    """
    model, size = build(DOCUMENT), max(15 * length, 2 * length + LOOPED * DOCUMENT_STRIDE)
    tokens = torch.randint(DOCUMENT.vocabulary, (size,), generator=torch.manual_seed(0))
    book = Document("book", tokens.numpy(), torch.arange(2 * size).view(-1, 2).numpy())
    windows, top = tokens.unfold(0, 2 * length, DOCUMENT_STRIDE), TopKLogitsWarper(top_k=TOP)

    def read(exact: int) -> None:
        measure(model, [book], length, length, stride=DOCUMENT_STRIDE, exact=exact)

    @torch.inference_mode()
    def loop(batch: int, count: int = LOOPED) -> None:
        for part in windows[:count].split(batch):
            logits = model(part, logits_to_keep=length + 1).logits[:, :-1]
            for each in (logits, top(None, logits)):
                each.log_softmax(-1).gather(-1, part[:, -length:, None]).sum(1).tolist()

    read(0)  # tries the model
    size = best_batch(lambda some: loop(some, some), LOOPED)
    works = partial(loop, size), partial(read, 0), partial(read, LOOPED)
    looped, rolling, both = rounds(works, seconds, PAIRS)
    most, least = map(operations, works[:2])
    exact = [a - b for a, b in zip(both, rolling, strict=True)]
    share = len(windows) / LOOPED
    whole, limit = [each * share for each in looped], f"{most * share / least:.2f}"
    ratios = [compared(whole, rolling), limit, compared(looped, exact)]
    return noted([f"{length} + {length}", f"{size}", *ratios])


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

    wanted = [(*each, PAIRS, True) for each in ON_GPU] if gpu else [(*e, False) for e in SWEEPS]
    sweeps, shares = zip(*(memorization(*each) for each in wanted), strict=True)
    head = ["model", "samples", "exact match", "rows that decode", "loop's batch"]
    head += ["loop / engine", "limit", "loop / engine without decoding", "limit"]
    show("Memorization sweep", head, sweeps)
    show("Where the engine's time goes", ["model", *PARTS, "near ties", "decided again"], shares)
    if gpu:
        return
    rows = list(benchmarks(NEOX))
    show("Benchmarks", ["requests", "number", "HFLM's batch", "HFLM / engine", "limit"], rows)
    head = ["prefix + suffix", "loop's batch", "loop over windows / rolling", "limit"]
    head += ["loop over windows / exact"]
    show("Windows of a document, one in 8 tokens", head, [documents(each) for each in LENGTHS])
    rows = [memory(*each) for each in LARGER]
    show("Peak memory", ["model", "samples", "engine", "plain loop"], rows)
    head = ["model", "pass", "blocks of a stock forward", "reading out", "head of a stock forward"]
    rows = [matrix_rate(shape) for shape in (NEOX, PYTHIA)]
    show("Share of the matrix-product rate", head, rows)


if __name__ == "__main__":
    main()
