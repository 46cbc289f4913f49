"""How much faster the engine is than plain loops over the interventions, side by side.

    python -m tests.performance.bench [REPORT]

Everything runs in one process on one thread, rivals taking turns; a ratio is that of two
neighbours. Times are the process's own CPU time, which other work on the machine disturbs less
than a clock on the wall. Every rival runs at the batch size that suits the plain loop.
"""

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.bypass import reference
from pipeline.bypass.completion import complete
from pipeline.bypass.interventions import sweep
from pipeline.bypass.plan import plan
from pipeline.bypass.reference import bypassed
from pipeline.bypass.scoring import score
from pipeline.bypass.wavefront import Sheet, run
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

PAIRS, SAMPLES, BATCH = 5, 64, 64
PREFIX, SUFFIX = 32, 32


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def ratios(engine: Callable[[], object], *rivals: Callable[[], object]) -> list[str]:
    """Median and range of rival / engine over the pairs, for each rival."""
    engine()
    return [compared(*rounds((rival, engine), seconds, PAIRS)) for rival in rivals]


def memorization(family: str, width: int, blocks: int, trained: bool) -> list[str]:
    """One row: the sweep against both loops."""
    model = build(family, width, blocks)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, PREFIX + SUFFIX), generator=generator)
    if trained:
        memorize(model, tokens)
    interventions = sweep(blocks)
    ours = complete(model, tokens, SUFFIX, interventions, BATCH)
    theirs = tuned.complete(model, tokens, SUFFIX, interventions, BATCH)
    plain = reference.complete(model, tokens, SUFFIX, interventions, BATCH)
    surely = plain.min_margin > 1e-4
    assert torch.equal(ours.continuation[surely], plain.continuation[surely])
    assert torch.equal(theirs[surely], plain.continuation[surely])
    known = (ours.continuation[0] == tokens[:, PREFIX:]).all(-1).float().mean()
    return [
        f"{family} {width}x{blocks}, baseline exact match {known:.2f}",
        *ratios(
            lambda: complete(model, tokens, SUFFIX, interventions, BATCH),
            lambda: reference.complete(model, tokens, SUFFIX, interventions, BATCH),
            lambda: tuned.complete(model, tokens, SUFFIX, interventions, BATCH),
        ),
    ]


SHAPES = {  # task: questions, choices, tokens of the context and of a continuation
    "arc_easy": (24, 4, 28, 4),
    "hellaswag": (12, 4, 55, 22),
    "piqa": (24, 2, 14, 20),
    "lambada_openai": (48, 1, 75, 2),
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

    model = build(family, 48, 8)
    words = {str(i): i for i in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")),
        eos_token="0", pad_token="0", unk_token="0",
    )  # fmt: skip
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
def growth() -> list[list[str]]:
    """Teacher-forced pass alone: time over that of 8 blocks, and block evaluations."""
    rows, first = [], 0.0
    for blocks in (8, 16, 32):
        decoder, trie = adapt(build("GPT-NeoX", 48, blocks)), plan(sweep(blocks), blocks)
        tokens = torch.randint(0, VOCABULARY, (16, PREFIX + SUFFIX - 1))
        spent = min(
            seconds(lambda d=decoder, t=trie, x=tokens: run(d, Sheet.plain(x, SUFFIX), t))
            for _ in range(3)
        )
        first = first or spent
        evaluations = trie.block_evaluations
        rows.append([f"{blocks} blocks", f"{spent / first:.1f}", f"{evaluations}"])
    return rows


@torch.inference_mode()
def matrix_rate(width: int) -> list[str]:
    """Share of the machine's own matrix-product rate that the pass and a stock forward reach."""
    model = build("GPT-NeoX", width, 4)
    decoder, trie = adapt(model), plan(sweep(4)[:5], 4)
    tokens = torch.randint(0, VOCABULARY, (16, PREFIX + SUFFIX - 1))
    square = torch.randn(1024, 1024)
    peak = max(2 * 1024**3 / seconds(lambda: square @ square) for _ in range(10))
    per_block = 24 * width**2 * tokens.numel()
    ours = min(seconds(lambda: run(decoder, Sheet.plain(tokens, 63), trie)) for _ in range(5))
    stock = min(seconds(lambda: model.gpt_neox(tokens, use_cache=False)) for _ in range(5))
    # a fork computes its output projection alone: 2 D^2 of a block's 24 D^2 a token
    flops = per_block * (trie.block_evaluations + 4 * 2 / 24)
    return [f"width {width}", f"{flops / ours / peak:.0%}", f"{per_block * 4 / stock / peak:.0%}"]


def main() -> None:
    """Print the tables, and write them to the file named on the command line."""
    torch.set_num_threads(1)
    parts = []

    def show(*arguments: object) -> None:
        parts.append(table(*arguments))  # type: ignore[arg-type]
        print(parts[-1], flush=True)

    shapes = [(f, t) for t in (True, False) for f in ("GPT-NeoX", "GPT-Neo")]
    head = ["model", "plain loop / engine", "tuned loop / engine"]
    show("Memorization sweep", head, [noted(memorization(f, 48, 8, t)) for f, t in shapes])
    tasks = [noted(benchmark(f, task)) for f in ("GPT-NeoX", "GPT-Neo") for task in SHAPES]
    show("Benchmarks", ["requests", "HFLM per intervention / engine"], tasks)
    show("Growth", ["model", "time", "block evaluations"], growth())
    rates = [matrix_rate(width) for width in (48, 64, 512)]
    show("Share of the matrix-product rate", ["model", "wavefront", "stock forward"], rates)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("\n".join(parts))


if __name__ == "__main__":
    main()
