"""Measures how much of each sample a model completes under each intervention.

Shapes: V interventions, N samples, P prefix and S suffix tokens.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.measure.metrics import MEMORIZATION, Completed, computed, unknown
from pipeline.measure.sharded import DEFAULT, Running, sharded
from pipeline.models.context import context_length
from pipeline.samples.frame import check_samples, of_each_split
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import cast, crossed

TRIAL_SAMPLES = 512
"""Samples for the baseline check before the sweep; it knows an exact match of .9 to ±.03."""

NOT_DECODED = 2**32 - 1
"""In place of the tokens after the first wrong one where a continuation was not decoded."""


def measure(
    model: PreTrainedModel,
    samples: pl.DataFrame,
    interventions: Sequence[Intervention],
    running: Running = DEFAULT,
    decode: Literal["all", "none"] | int = "all",
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> pl.DataFrame:
    """Complete every sample under every intervention, and compute the metrics.

    Args:
        model: in evaluation mode, on any device.
        samples: as `SAMPLES`; all of one prefix and one suffix length.
        interventions: V of them, distinct.
        running: it changes no result.
        decode: the continuations to decode to the end: ``all``, ``none``, or those of this number
            of samples of each split. Others are known if they are right up to the last token.
        tokenizer: the model's, for metrics that need text; None: these are null.

    Returns:
        As `metrics.MEMORIZATION`, V×N rows: intervention by intervention, samples in their order.

    Raises:
        InputError: samples of several lengths or longer than the model's context, token ids
            beyond its vocabulary, or input that `complete` rejects.
    """
    check_samples(samples, model.config.vocab_size, context_length(model.config))
    tokens = torch.tensor(samples["tokens"].to_list())
    suffix_length = int(samples["suffix_length"][0])
    suffix = tokens[:, -suffix_length:]
    texts = None if tokenizer is None else tokenizer.batch_decode(suffix)
    count = {"all": len(samples), "none": 0}.get(str(decode), decode)
    splits = samples["split"].unique(maintain_order=True).to_list()
    chosen = of_each_split(samples, splits, int(count))["sample_id"]
    decoded = samples["sample_id"].is_in(chosen.implode())

    def work(part: range) -> dict[str, NDArray[Any]]:
        here = slice(part.start, part.stop)
        completed = complete(
            model,
            tokens[here],
            suffix_length,
            interventions,
            progress=lambda done, _: running.progress(part.start + done, len(tokens)),
            token_budget=running.token_budget,
            journal=running.journal,
            decode=decoded[here].to_list(),
            calibration_tokens=tokens,
            first=part.start,
        )
        results = {name: tensor.numpy() for name, tensor in completed.tensors().items()}
        # in the table's own types, so that all columns fit into memory; -1 becomes `NOT_DECODED`
        others = {
            "min_margin": results.pop("min_margin"),
            "continuation": results["continuation"].astype(np.uint32),
        }
        made = Completed(suffix=suffix[here].numpy(), texts=texts and texts[here], **results)
        return computed(made) | others

    lengths = [tokens.shape[1]] * len(tokens)
    determined_by = [decode, suffix_length, texts, *tokens.tolist()]
    arrays = sharded(running.shards, model, interventions, lengths, determined_by, work)
    names = pl.DataFrame({"intervention": [one.name for one in interventions]})
    rows = crossed(names, samples.select("sample_id", "split").with_columns(decoded=decoded))
    measured = []
    while arrays:  # one by one, since arrays and columns together would take twice the memory
        name, array = arrays.popitem()
        measured.append(pl.Series(name, array.reshape(-1, *array.shape[2:])))
    table = cast(rows.with_columns(measured), MEMORIZATION)
    known = pl.col("continuation").list.last() != NOT_DECODED
    return table.with_columns(*unknown(known), pl.when(known).then(pl.col("continuation")))


def require_baseline(
    model: PreTrainedModel,
    samples: pl.DataFrame,
    floor: float,
    stop: bool,
    token_budget: int | None = None,
) -> dict[str, float]:
    """Check before the sweep that the unmodified model completes the memorized samples.

    On `TRIAL_SAMPLES` of them, a wrong tokenizer, revision or precision shows in a fraction of the
    time.

    Args:
        model: in evaluation mode, on any device.
        samples: as `SAMPLES`; one prefix and one suffix length.
        floor: exact match to reach, 0 to 1.
        stop: whether to stop where the whole 95% interval (Wilson) lies below the floor.
        token_budget: as in `Running`.

    Returns:
        exact_match, low and high (its interval), n; empty without memorized samples.

    Raises:
        InputError: the interval lies below the floor, and `stop`.
    """
    trial = of_each_split(samples, ["memorized"], TRIAL_SAMPLES)
    if trial.is_empty():
        return {}
    made = measure(model, trial, (BASELINE,), Running(token_budget))
    right = int(made["exact_match"].sum())
    low, high = stats.binomtest(right, len(made)).proportion_ci(method="wilson")
    measured = f"exact match {right / len(made):.3f}, 95% interval {low:.3f} to {high:.3f}"
    print(f"baseline on {len(made)} samples: {measured}", flush=True)
    if high < floor:
        remedy = "check that samples, tokenizer, revision and dtype belong together"
        if stop:
            raise bad_input(
                f"the baseline on {len(made)} of the memorized samples",
                measured,
                f"{floor:g} or more",
                f"{remedy}; to continue anyway, set below_floor: warn for this family under "
                "`evaluation` in params.yaml",
            )
        print(f"warning: below the baseline_floor of {floor:g}; {remedy}", flush=True)
    return {"exact_match": right / len(made), "low": low, "high": high, "n": len(made)}
