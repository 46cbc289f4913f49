"""How much host memory the tables of a large study take, step by step.

    python -m tests.faults.memory [--samples 15000] [--blocks 145]

Each step runs in a process of its own: the stages that evaluate (what the model computes is made
up, all that is done with it is not), the check of the results and their aggregation. 145 blocks are
150 interventions. It prints the peak of each step; one above 2 GB ends it with status 1.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

LIMIT_GB = 2.0
MODEL, FAMILY = "large", "pile"
PREFIX, SUFFIX = 150, 50
VOCABULARY = 50_000
DOCUMENTS = 19_500
"""With two metrics each, as many values as the five benchmarks of the paper have."""

DIVERGENCE_SAMPLES = 64


def samples(data: Path, n_samples: int, _n_blocks: int) -> None:
    """The samples table, and a manifest."""
    import numpy as np

    from pipeline.samples.frame import samples_frame
    from pipeline.samples.schemas import SAMPLES
    from pipeline.workflow import tables

    tokens = np.random.default_rng(0).integers(1, VOCABULARY, (n_samples, PREFIX + SUFFIX))
    made = samples_frame(tokens, PREFIX, ["memorized"] * n_samples, [None] * n_samples)
    tables.write(made, data / "samples" / f"{FAMILY}.parquet", SAMPLES, {})


def memorization(data: Path, n_samples: int, n_blocks: int) -> None:
    """The table of memorization, in shards."""
    import torch

    from pipeline.interventions.evaluation import Completions
    from pipeline.interventions.interventions import sweep
    from pipeline.measure import memorization as stage
    from pipeline.measure import metrics, schemas
    from pipeline.measure.listed import as_table
    from pipeline.measure.sharded import Running
    from pipeline.samples.schemas import read_samples
    from pipeline.workflow import tables
    from pipeline.workflow.shards import open_shards

    def made_up(_model: object, tokens: torch.Tensor, *_: object, first: int, **__: object) -> Any:
        shape = (len(interventions), len(tokens))
        chance = torch.Generator().manual_seed(first)
        written = torch.randint(1, VOCABULARY, (*shape, SUFFIX), generator=chance)
        written[:, ::3] = tokens[::3, PREFIX:]
        entropy = torch.rand((*shape, SUFFIX), generator=chance)
        rank = torch.ones(entropy.shape, dtype=torch.int32)
        said = entropy, -entropy, -entropy, rank, entropy.clone()
        return Completions(written, entropy[..., 0].clone(), written.clone(), *said)

    interventions = sweep(n_blocks)
    listed = data / "interventions" / f"{MODEL}.parquet"
    tables.write(as_table(interventions), listed, schemas.INTERVENTIONS, {})
    read = read_samples(data, FAMILY)
    with (
        mock.patch.object(stage, "complete", made_up),
        open_shards(data / "partial" / "memorization" / MODEL, 0.02, {}) as shards,
    ):
        made = stage.measure(_model(PREFIX + SUFFIX), read, interventions, Running(shards=shards))
        path = data / "memorization" / f"{MODEL}.parquet"
        tables.write(made, path, metrics.MEMORIZATION, {})
        shards.finish()


def tokens(data: Path, _n_samples: int, n_blocks: int) -> None:
    """The tables of some samples, token by token."""
    from pipeline.interventions.interventions import sweep
    from pipeline.measure import metrics, schemas
    from pipeline.measure.chosen import chosen
    from pipeline.samples.schemas import read_samples
    from pipeline.workflow import tables
    from tests.analysis.synthetic import displacement_of, of_tokens

    whole = tables.read(data / "memorization" / f"{MODEL}.parquet", metrics.MEMORIZATION)
    some = chosen(read_samples(data, FAMILY))
    moved, changed = displacement_of(sweep(n_blocks), n_blocks, some)
    for name, frame, schema in (
        (f"tokens/{MODEL}", of_tokens(whole, some), schemas.TOKENS),
        (f"displacement/{MODEL}", moved, schemas.DISPLACEMENT),
        (f"displacement/{MODEL}.attention", changed, schemas.ATTENTION_CHANGE),
    ):
        tables.write(frame, data / f"{name}.parquet", schema, {})


def benchmarks(data: Path, _n_samples: int, n_blocks: int) -> None:
    """The tables of benchmarks."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from pipeline.interventions.evaluation import Likelihoods
    from pipeline.interventions.interventions import sweep
    from pipeline.measure import benchmarks as stage
    from pipeline.measure import schemas
    from pipeline.tasks.loading import load_tasks
    from pipeline.workflow import tables

    def made_up(_model: object, requests: Sequence[object], *_: object, **__: object) -> Any:
        shape = (len(interventions), len(requests))
        scores = torch.rand(shape, generator=torch.Generator().manual_seed(0)).double()
        return Likelihoods(-scores, scores > 0.5)

    interventions = sweep(n_blocks)
    words = Tokenizer(models.WordLevel({"?": 0} | {str(i): i + 1 for i in range(99)}, "?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="?", eos_token="?", bos_token="?"
    )
    with mock.patch.object(stage, "score", made_up):
        tasks = load_tasks(["large"], _task(data / "tasks"))
        made, documents = stage.measure(_model(64), tokenizer, tasks, interventions)
    below = data / "benchmarks"
    path = below / f"{MODEL}.documents.parquet"
    tables.write(documents, path, schemas.BENCHMARK_DOCUMENTS, {})
    tables.write(made, below / f"{MODEL}.parquet", schemas.BENCHMARKS, {})


def divergence(data: Path, n_samples: int, n_blocks: int) -> None:
    """Tables of divergence in which nothing is wrong."""
    import polars as pl

    from tests.analysis.synthetic import write_divergence

    chosen = pl.DataFrame({"sample_id": range(min(n_samples, DIVERGENCE_SAMPLES))})
    write_divergence(data, MODEL, n_blocks, chosen.with_columns(split=pl.lit("memorized")))


def check_results(data: Path, _n_samples: int, _n_blocks: int) -> None:
    """The check of all of them."""
    from pipeline.analysis.results import check_results as check

    check([(MODEL, FAMILY)], data, DIVERGENCE_SAMPLES)


def aggregate(data: Path, _n_samples: int, _n_blocks: int) -> None:
    """Every estimate with its interval."""
    from pipeline.analysis.aggregate import write_summary

    write_summary("large", [(MODEL, FAMILY)], data)


STEPS: dict[str, Callable[[Path, int, int], None]] = {
    step.__name__: step
    for step in (samples, memorization, tokens, benchmarks, divergence, check_results, aggregate)
}


def peak(step: str, data: Path, n_samples: int, n_blocks: int) -> float:
    """Of a process that does nothing but this step, in GB."""
    sizes = ["--samples", str(n_samples), "--blocks", str(n_blocks)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.memory", "--step", step, "--data", str(data), *sizes],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.split()[-1])


def high_water() -> float:
    """The most memory (MB) that this process has taken so far."""
    status = Path("/proc/self/status")
    if not status.exists():  # macOS, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    # not Linux's ru_maxrss, which begins with what the parent process had taken
    line = next(each for each in status.read_text().splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def _model(context: int) -> Any:
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    return GPTNeoForCausalLM(
        GPTNeoConfig(
            vocab_size=VOCABULARY,
            hidden_size=8,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=context,
        )
    ).eval()


def _task(folder: Path) -> Path:
    folder.mkdir(parents=True)
    with (folder / "large.jsonl").open("w") as file:
        for i in range(DOCUMENTS):
            choices = [f"{i % 97} {i % 89} {i % 83} {i // 97} {j}" for j in range(4)]
            file.write(json.dumps({"q": f"{i % 7} {i % 5}", "choices": choices, "right": 0}) + "\n")
    (folder / "large.yaml").write_text(
        "task: large\ndataset_path: json\ndataset_kwargs: {data_files: {test: large.jsonl}}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{q}}'\n"
        "doc_to_choice: choices\ndoc_to_target: right\n"
        "metric_list: [{metric: acc}, {metric: acc_norm}]\n"
    )
    return folder


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=15_000)
    parser.add_argument("--blocks", type=int, default=145)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.step:
        STEPS[asked.step](asked.data, asked.samples, asked.blocks)
        print(high_water() / 1024)
        return
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder, "checkpoints", MODEL, "manifest.json")
        manifest.parent.mkdir(parents=True)
        told = {"name": MODEL, "family": FAMILY, "n_blocks": asked.blocks}
        manifest.write_text(json.dumps(told))
        print("| step | peak, GB |\n|---|---:|")
        measured = []
        for step in STEPS:
            measured.append(peak(step, Path(folder), asked.samples, asked.blocks))
            print(f"| {step} | {measured[-1]:.2f} |", flush=True)
    sys.exit(max(measured) > LIMIT_GB)


if __name__ == "__main__":
    main()
