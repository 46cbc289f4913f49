"""How much faster the engine is than plain loops over the interventions, side by side.

    python -m tests.performance.bench [REPORT]

Everything runs in one process on one thread, rivals taking turns; a ratio is that of two times of
one round. Times are the process's own CPU time, which other work on the machine disturbs less
than a clock on the wall. The loops take all samples in one batch, which suits them best; the engine
chooses its own. Takes about half an hour.
"""

import logging
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from pipeline.interventions import reference
from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import sweep
from pipeline.interventions.plan import plan
from pipeline.interventions.reference import bypassed
from pipeline.interventions.scoring import score
from pipeline.interventions.wavefront import Sheet, run
from pipeline.models.families import adapt
from tests.performance import tuned
from tests.performance.common import (
    VOCABULARY,
    build,
    compared,
    memorize,
    noted,
    rounds,
    table,
)

HEAD = """# How fast

Written by `make bench`. Times are CPU times on one thread; ratios are medians and ranges of five
rounds in which the rivals take turns, on 64 samples of 32 + 32 tokens. *Plain loop*: one forward
and one `generate` an intervention; *tuned loop*: as fast as stock transformers allow; *engine*:
all interventions in one pass (*wavefront*), then only rows that go wrong are decoded. Shapes are
width x blocks.
"""
PAIRS, SAMPLES = 5, 64
PREFIX, SUFFIX, WIDTH = 32, 32, 64  # as in the tiny study


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def ratios(engine: Callable[[], object], *rivals: Callable[[], object]) -> list[str]:
    """Median and range of rival / engine over the rounds, for each rival."""
    engine()
    first, *others = rounds((engine, *rivals), seconds, PAIRS)
    return [compared(other, first) for other in others]


def samples(count: int = SAMPLES) -> torch.Tensor:
    """Random sequences (count, P + S)."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, VOCABULARY, (count, PREFIX + SUFFIX), generator=generator)


def memorization(family: str, width: int, blocks: int, trained: bool) -> list[str]:
    """One row: the sweep against both loops."""
    model, tokens, interventions = build(family, width, blocks), samples(), sweep(blocks)
    if trained:
        memorize(model, tokens)
    asked = model, tokens, SUFFIX, interventions
    plain = reference.complete(*asked, SAMPLES)
    ours = complete(*asked)
    surely = plain.min_margin > 1e-4
    assert torch.equal(ours.continuation[surely], plain.continuation[surely])
    assert torch.equal(tuned.complete(*asked, SAMPLES)[surely], plain.continuation[surely])
    right = (ours.continuation == tokens[:, PREFIX:]).long().cumprod(-1).sum(-1)
    return [
        f"{family} {width}x{blocks}",
        f"{(right[0] == SUFFIX).float().mean():.2f}",
        f"{(right < SUFFIX - 1).float().mean():.0%}",
        *ratios(
            partial(complete, *asked),
            partial(reference.complete, *asked, SAMPLES),
            partial(tuned.complete, *asked, SAMPLES),
        ),
    ]


def peak(loop: Callable[..., object], family: str, blocks: int, batch_size: int | None) -> float:
    """Most memory (MB) that a sweep of an untrained model takes on top of the model itself."""
    torch.set_num_threads(1)
    model, tokens, interventions = build(family, WIDTH, blocks), samples(256), sweep(blocks)
    # once before it counts: libraries load what they need at first use
    loop(model, tokens[:1], SUFFIX, interventions[:1], batch_size)
    before = high_water()
    loop(model, tokens, SUFFIX, interventions, batch_size)
    return high_water() - before


def high_water() -> float:
    """The most memory (MB) that this process has taken so far."""
    status = Path("/proc/self/status")
    if not status.exists():  # macOS, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    # not Linux's ru_maxrss, which begins with what the parent process had taken
    line = next(each for each in status.read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def memory(family: str, blocks: int) -> list[str]:
    """One row: peak memory of the engine and both loops, each in a process of its own."""
    row = [f"{family} {WIDTH}x{blocks}"]
    for loop, size in ((complete, None), (reference.complete, 64), (tuned.complete, 64)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row.append(f"{pool.apply(peak, (loop, family, blocks, size)):.0f} MB")
    return row


SHAPES = {  # task: questions, choices, tokens of the context and of a continuation
    "arc_easy": (48, 4, 28, 4),
    "hellaswag": (24, 4, 55, 22),
    "piqa": (48, 2, 14, 20),
    "lambada_openai": (96, 1, 75, 2),
    "wikitext": (24, 1, 1, 200),
}


def requests_like(task: str) -> list[tuple[list[int], list[int]]]:
    """Random requests of the task's shape."""
    rng = random.Random(task)
    questions, choices, context, continuation = SHAPES[task]

    def text(length: float, spread: float) -> list[int]:
        return [
            rng.randrange(1, VOCABULARY) for _ in range(max(1, round(rng.gauss(length, spread))))
        ]

    made = []
    for _ in range(questions):
        shared = text(context, context / 4 if context > 1 else 0)
        made += [(shared, text(continuation, continuation / 8)) for _ in range(choices)]
    return made


def benchmark(family: str, task: str) -> list[str]:
    """One row: a task's requests against lm-eval's HFLM, once an intervention."""
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = build(family, WIDTH, 8)
    words = {str(i): i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")),
        eos_token="0", pad_token="0", unk_token="0",
    )  # fmt: skip
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # that a model is handed over is no news
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=32, device="cpu")
    requests, interventions = requests_like(task), sweep(8)
    items = [((str(i), ""), *request) for i, request in enumerate(requests)]

    def hflm() -> list[list[float]]:
        answers = []
        for intervention in interventions:
            with bypassed(model, intervention):
                told = lm._loglikelihood_tokens(items, disable_tqdm=True)
            answers.append([log_prob for log_prob, _ in told])
        return answers

    ours = score(model, requests, interventions).log_prob
    assert (ours - torch.tensor(hflm(), dtype=torch.float64)).abs().max() < 1e-3
    return [f"{family}, {task}", *ratios(lambda: score(model, requests, interventions), hflm)]


@torch.inference_mode()
def growth_with_blocks() -> list[list[str]]:
    """Teacher-forced pass alone: time over that of 8 blocks, and block evaluations."""
    tokens = samples(16)[:, :-1]
    works, evaluations = [], []
    for blocks in (8, 16, 32):
        decoder, trie = adapt(build("GPT-NeoX", WIDTH, blocks)), plan(sweep(blocks), blocks)
        works.append(partial(run, decoder, Sheet.plain(tokens, SUFFIX), trie))
        evaluations.append(trie.block_evaluations)
    first, *_ = spent = rounds(works, seconds, PAIRS)
    return [
        [f"{blocks} blocks", compared(times, first), f"{count}", f"{blocks**2 // 2}"]
        for blocks, times, count in zip((8, 16, 32), spent, evaluations, strict=True)
    ]


def growth_with_samples() -> list[list[str]]:
    """The whole sweep of an untrained model, decoding too: time over that of 64 samples."""
    model, counts = build("GPT-NeoX", WIDTH, 8), (64, 128, 256)
    works = [partial(complete, model, samples(n), SUFFIX, sweep(8)) for n in counts]
    first, *_ = spent = rounds(works, seconds, PAIRS)
    return [
        [f"{n} samples", compared(times, first)] for n, times in zip(counts, spent, strict=True)
    ]


@torch.inference_mode()
def matrix_rate(width: int) -> list[str]:
    """Share of the machine's own matrix-product rate that the pass and a stock forward reach."""
    model = build("GPT-NeoX", width, 4)
    decoder, trie = adapt(model), plan(sweep(4)[:5], 4)
    tokens = torch.randint(0, VOCABULARY, (16, PREFIX + SUFFIX - 1))
    square = torch.randn(1024, 1024)
    most = max(2 * 1024**3 / seconds(lambda: square @ square) for _ in range(10))
    per_block = 24 * width**2 * tokens.numel()
    ours = min(seconds(lambda: run(decoder, Sheet.plain(tokens, 63), trie)) for _ in range(5))
    stock = min(seconds(lambda: model.gpt_neox(tokens, use_cache=False)) for _ in range(5))
    # a fork computes its output projection alone: 2 D^2 of a block's 24 D^2 a token
    flops = per_block * (trie.block_evaluations + 4 * 2 / 24)
    return [f"width {width}", f"{flops / ours / most:.0%}", f"{per_block * 4 / stock / most:.0%}"]


def main() -> None:
    """Print the tables, and write them to the file named on the command line."""
    torch.set_num_threads(1)
    parts = [HEAD]

    def show(*arguments: object) -> None:
        parts.append(table(*arguments))  # type: ignore[arg-type]
        print(parts[-1], flush=True)

    families = ("GPT-NeoX", "GPT-Neo")
    head = ["model", "exact match", "rows that decode"]
    head += ["plain loop / engine", "tuned loop / engine"]
    for trained, title in ((True, "memorizing models"), (False, "untrained models")):
        shapes = [(f, *s) for s in ((WIDTH, 8), (WIDTH, 12)) for f in families]
        rows = [noted(memorization(*shape, trained)) for shape in shapes]
        show(f"Memorization sweep, {title}", head, rows)
    tasks = [noted(benchmark(family, task)) for family in families for task in SHAPES]
    show("Benchmarks", ["requests", "HFLM per intervention / engine"], tasks)
    head = ["model", "engine", "plain loop, batch 64", "tuned loop, batch 64"]
    shapes = [(family, blocks) for family in families for blocks in (8, 12)]
    show("Peak memory, 256 samples", head, [noted(memory(*shape)) for shape in shapes])
    head = ["model", "time", "block evaluations", "L^2 / 2"]
    show("Growth with blocks, teacher-forced pass", head, growth_with_blocks())
    show("Growth with samples", ["sweep", "time"], growth_with_samples())
    rates = [matrix_rate(width) for width in (WIDTH, 128, 512)]
    show("Share of the matrix-product rate", ["model", "wavefront", "stock forward"], rates)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(parts))


if __name__ == "__main__":
    main()
