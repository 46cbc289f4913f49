"""Near-verbatim bounds against plain sampling, on the models of a study.

    OMP_NUM_THREADS=1 python -m tests.measure.sampling data/tiny tiny-pythia-8 [--rows 10]

Reads a study's checkpoint and samples, and draws 20,000 suffixes for each row from stock
transformers, under the baseline and two edits of the last block. The frequency within each distance
must agree with the bounds: its exact (Clopper-Pearson) interval at 99.9% meets theirs. It prints a
line for each row, edit and distance, with d = 0 to 3, and ends with status 1 if more than one
comparison in 100 does not agree. Half an hour on a busy core.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor
from transformers import AutoModelForCausalLM, TopKLogitsWarper

from pipeline.interventions import Intervention
from pipeline.measure.near_verbatim import DISTANCES, bounds
from tests.oracle import plain

BATCH, D = 200, 3


@torch.inference_mode()
def drawn(model, prefix: Tensor, length: int, count: int, top_k: int = 40) -> NDArray[np.int64]:
    """(count, length) suffixes sampled token by token at temperature 1."""
    parts = []
    for first in range(0, count, BATCH):
        read, written = model(input_ids=prefix[None], use_cache=True), []
        logits, cache = read.logits.expand(min(BATCH, count - first), -1, -1), read.past_key_values
        cache.batch_repeat_interleave(len(logits))
        for _ in range(length):
            scores = TopKLogitsWarper(top_k)(None, logits[:, -1].float())
            written.append(scores.softmax(-1).multinomial(1))
            logits = model(input_ids=written[-1], past_key_values=cache).logits
        parts.append(torch.cat(written, 1))
    return torch.cat(parts).numpy()


def distances(suffixes: NDArray[np.int64], z: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """(n,) from each suffix to z, by the whole tables of the edit distance, a row at a time."""
    row = np.tile(np.arange(len(z) + 1), (len(suffixes), 1))
    for t in range(suffixes.shape[1]):
        new = np.empty_like(row)
        new[:, 0] = t + 1
        for j in range(1, len(z) + 1):
            swapped = row[:, j - 1] + (suffixes[:, t] != z[j - 1])
            new[:, j] = np.minimum(np.minimum(row[:, j] + 1, new[:, j - 1] + 1), swapped)
        row = new
    return {"hamming": (suffixes != z).sum(1), "levenshtein": row[:, -1]}


def agrees(within: NDArray[np.bool_], lower: float, upper: float) -> bool:
    """Whether a frequency's interval at 99.9% meets the bounds, up to the model's rounding."""
    ends = binomtest(int(within.sum()), len(within)).proportion_ci(0.999)
    return bool(lower - 1e-6 <= ends.high and ends.low <= upper + 1e-6)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("model")
    parser.add_argument("--family", default="pythia")
    parser.add_argument("--rows", type=int, default=10, help="evenly spread over the samples")
    parser.add_argument("--suffix-length", type=int, default=12)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(asked.data / "checkpoints" / asked.model).eval()
    last = model.config.num_hidden_layers - 1
    edits = [Intervention("baseline", {})]
    edits += [Intervention(edit, {last: edit}) for edit in ("identity", "zero")]
    samples = pl.read_parquet(asked.data / "samples" / f"{asked.family}.parquet")
    rows = samples[[i * (len(samples) - 1) // (asked.rows - 1) for i in range(asked.rows)]]
    prefix, length = int(rows["prefix_length"][0]), asked.suffix_length
    tokens = torch.tensor(rows["tokens"].to_list())[:, : prefix + length].long()
    found = {
        distance: bounds(
            model, tokens, length, D, asked.width, distance=distance, interventions=edits
        )
        for distance in DISTANCES
    }
    judged = []
    for n, (split, copies) in enumerate(rows.select("split", "copies").iter_rows()):
        for v, edit in enumerate(edits):
            with plain.bypassed(model, edit):
                suffixes = drawn(model, tokens[n, :prefix], length, asked.draws)
            for distance, away in distances(suffixes, tokens[n, prefix:].numpy()).items():
                told = []
                for d in range(D + 1):
                    ends = [float(each[v, n, d]) for each in found[distance]]
                    judged.append((agrees(away <= d, *ends), (away <= d).mean(), *ends))
                    told.append("{1:.4f} in {2:.4f} to {3:.4f}: {0}".format(*judged[-1]))
                print(split, copies, "copies,", edit.name, distance, *told, sep="  ", flush=True)
    right, share, lower, upper = np.array(judged).T
    mixed = (share > 0) & (share < 1)
    close = mixed & (upper - lower < 0.01)
    print(f"{len(judged)} comparisons, {(right == 0).sum()} outside")
    print(f"{mixed.sum()} frequencies above 0 and below 1, {close.sum()} with bounds within 0.01")
    return int((right == 0).mean() > 0.01)


if __name__ == "__main__":
    sys.exit(main())
