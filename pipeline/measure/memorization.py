"""How much of each sample a model still completes under each intervention.

Shapes: V interventions, N samples, P prefix and S suffix tokens.

Source: arXiv 2501.05078, Eq. 3 (exact match), Eq. 4 (token accuracy), Eq. 5 (completion entropy).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.bypass.completion import complete
from pipeline.bypass.evaluation import Progress, silent
from pipeline.bypass.interventions import Intervention
from pipeline.bypass.memory import Journal
from pipeline.errors import InputError, Problem
from pipeline.tables import MEMORIZATION


def measure(
    model: PreTrainedModel,
    samples: pl.DataFrame,
    interventions: Sequence[Intervention],
    token_budget: int | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
) -> pl.DataFrame:
    """Complete every sample under every intervention, and say how well.

    Args:
        model: in evaluation mode, on any device.
        samples: as `tables.SAMPLES`; all of one prefix and one suffix length.
        interventions: V of them, distinct.
        token_budget: tokens at a time, counted once a branch of the wavefront; it changes no
            result; None: from the memory that is free.
        progress: told after each batch.
        journal: is told of batches halved and of choices made again in a better precision.

    Returns:
        As `tables.MEMORIZATION`, V×N rows: intervention by intervention, samples in their order.

    Raises:
        InputError: samples of several lengths or longer than the model's context, token ids
            beyond its vocabulary, or what `complete` refuses.
    """
    _check(samples, model.config.vocab_size, model.config.max_position_embeddings)
    tokens = torch.tensor(samples["tokens"].to_list())
    suffix_length = int(samples["suffix_length"][0])
    suffix = tokens[:, -suffix_length:]

    made = complete(
        model,
        tokens,
        suffix_length,
        interventions,
        progress=progress,
        token_budget=token_budget,
        journal=journal,
    )

    # in a cross join the right side varies fastest: the order of a flattened (V, N)
    names = pl.DataFrame({"intervention": [each.name for each in interventions]})
    rows = names.join(
        samples.select("sample_id", "split"), how="cross", maintain_order="left_right"
    )
    values = {
        "exact_match": exact_match(made.continuation, suffix),
        "token_accuracy": token_accuracy(made.continuation, suffix),
        "completion_entropy": made.completion_entropy,
        "matching_prefix": matching_prefix(made.continuation, suffix),
        "teacher_forced_accuracy": token_accuracy(made.teacher_forced, suffix),
        "suffix_log_prob": made.suffix_log_prob,
        "min_margin": made.min_margin,
    }
    columns = [pl.Series(name, value.flatten().numpy()) for name, value in values.items()]
    columns.append(pl.Series("continuation", made.continuation.flatten(0, 1).tolist()))
    return rows.with_columns(columns).select(
        pl.col(name).cast(column.dtype) for name, column in MEMORIZATION.items()
    )


def exact_match(continuation: Tensor, suffix: Tensor) -> Tensor:
    """Whether the continuation is the suffix, token by token (Eq. 3).

    Args:
        continuation: (V, N, S) token ids.
        suffix: (N, S) token ids.

    Returns:
        (V, N) bool.
    """
    return (continuation == suffix).all(-1)


def token_accuracy(continuation: Tensor, suffix: Tensor) -> Tensor:
    """The share of positions where the continuation has the suffix's token (Eq. 4).

    A position counts whatever happened before it; see `matching_prefix` for the other view.

    Args:
        continuation: (V, N, S) token ids, greedy or teacher-forced.
        suffix: (N, S) token ids.

    Returns:
        (V, N) float64, 0 to 1.
    """
    return (continuation == suffix).double().mean(-1)


def matching_prefix(continuation: Tensor, suffix: Tensor) -> Tensor:
    """How many tokens are right before the first wrong one; exact match at k is "k or more".

    Args:
        continuation: (V, N, S) token ids, greedy.
        suffix: (N, S) token ids.

    Returns:
        (V, N) int64, 0 to S.
    """
    return (continuation == suffix).long().cumprod(-1).sum(-1)


def _check(samples: pl.DataFrame, vocabulary: int, context: int) -> None:
    """Raise an InputError with everything that keeps `samples` from fitting a model."""
    problems = []
    lengths = samples.select("prefix_length", "suffix_length").unique(maintain_order=True)
    if len(lengths) != 1:
        problems.append(
            Problem(
                what="lengths of the samples",
                got="; ".join(f"{p} + {s}" for p, s in lengths.head(5).rows()) or "no samples",
                expected="one prefix and one suffix length",
                remedy="make one samples table for each pair of lengths",
            )
        )
    whole = pl.col("prefix_length").cast(pl.Int64) + pl.col("suffix_length")
    long = samples.filter(whole > context)
    if len(long):
        problems.append(
            Problem(
                what="length of the samples",
                got=f"{long.select(whole.max()).item()} tokens",
                expected=f"at most {context}, the model's context",
                remedy="shorten prefix or suffix",
            )
        )
    broken = samples.filter(
        (pl.col("tokens").list.len() != whole)
        | (pl.col("prefix_length") < 1)
        | (pl.col("suffix_length") < 1)
    )
    if len(broken):
        sample, tokens, prefix, suffix = broken.select(
            "sample_id", pl.col("tokens").list.len(), "prefix_length", "suffix_length"
        ).row(0)
        problems.append(
            Problem(
                what=f"sample {sample} and {len(broken) - 1} more",
                got=f"{tokens} tokens, {prefix} of prefix, {suffix} of suffix",
                expected="a prefix and a suffix of 1 token or more each, and no other token",
                remedy="make the samples table again",
            )
        )
    unknown = samples.filter(pl.col("tokens").list.max() >= vocabulary)
    if len(unknown):
        sample, largest = unknown.select("sample_id", pl.col("tokens").list.max()).row(0)
        problems.append(
            Problem(
                what=f"sample {sample} and {len(unknown) - 1} more",
                got=f"token id {largest}",
                expected=f"ids below {vocabulary}, the model's vocabulary",
                remedy="use the samples that were made for this model's tokenizer",
            )
        )
    if problems:
        raise InputError(*problems)
