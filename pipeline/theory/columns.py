"""The schemas of the tables of the theory; see `pipeline.workflow.tables`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import polars as pl

from pipeline.workflow.tables import Column, Schema, dtypes

_text = partial(Column, pl.String)
_bool = partial(Column, pl.Boolean)
_real = partial(Column, pl.Float64)
_block = partial(Column, pl.UInt16)
_count = partial(Column, pl.UInt32)

_BYPASS: Schema = {
    "sample_id": _count("as in the samples table"),
    "split": _text("as in the samples table"),
    "block": _block("the bypassed block"),
}

_SHAPE: Schema = {
    "vocabulary": _count("N, tokens"),
    "width": _count("D"),
    "heads": _count("H"),
    "head_width": _count("K, of queries, keys and values"),
}

DIVERGENCE_TRIANGLE: Schema = {
    **_BYPASS,
    "after": _block("the block after which is looked, block to L-1; L: the logits"),
    "change": _real("norm of the change at the last prefix token; logits centred"),
    "relative": _real("change / norm without a bypass"),
    "kl": _real("nats, KL(baseline || bypassed), of logits; else null", nullable=True),
}

DIVERGENCE_BOUNDS: Schema = {
    **_BYPASS,
    "change": _real("||D||, the change right after the block, in float64"),
    "relative": _real("||D|| / ||v||"),
    "attention_change": _real("||Delta a||, of the attention's output"),
    "own_weight_min": _real("the last token's weight on itself, smallest of a head"),
    "own_weight_mean": _real("the same, mean over heads"),
    "own_weight_max": _real("the same, largest of a head"),
    "own_weight_weighted": _real("the same, heads weighted by ||M_h||"),
    "input_spread": _real("M = max_i ||x_n - x_i||"),
    "normalized_spread": _real("M_y = max_i ||y_n - y_i||, of tokens in the window"),
    "epsilon": _real("||eps_IA - eps||; 0 in a parallel block"),
    "epsilon_share": _real("epsilon / ||D||; 0 where nothing changes"),
    "printed": _real("Theorem 1 as printed, own weight: mean over heads"),
    "printed_violated": _bool("||D|| exceeds it"),
    "printed_generous": _real("the same with the smallest own weight"),
    "printed_generous_violated": _bool("||D|| exceeds it"),
    "printed_normalized": _real("the same with W fitted after the MLP's norm"),
    "printed_normalized_violated": _bool("||D|| exceeds it"),
    "a5": _real("bound on ||Delta a||, token by token"),
    "a1": _real("bound on ||Delta a|| from norms, spread and own weights"),
    "bound": _real("Theorem 1 corrected, token by token through I + W: the headline"),
    "bound_a5": _real("the same of a5 and ||I + W||"),
    "bound_a1": _real("the same of a1 and ||I + W||"),
    "bound_without_fit": _real("the same of a5 with W = 0"),
    "bound_from_weights": _real("the same of a5 without epsilon"),
    "violated": _bool("||D|| or ||Delta a|| exceeds one of the seven: never"),
    "next_change": _real("||D'||, one block on; null after the last", nullable=True),
    "next_printed": _real("Theorem 2 as printed", nullable=True),
    "next_printed_violated": _bool("||D'|| exceeds it", nullable=True),
    "next_proved": _real("the same with its proof's epsilon", nullable=True),
    "next_proved_violated": _bool("||D'|| exceeds it", nullable=True),
    "next_normalized": _real("proved, W fitted after the MLP's norm", nullable=True),
    "next_normalized_violated": _bool("||D'|| exceeds it", nullable=True),
    "next_bound": _real("Theorem 2 corrected, token by token, I + W", nullable=True),
    "next_bound_coarse": _real("the same of norms and a diameter", nullable=True),
    "next_violated": _bool("||D'|| exceeds one of the two: never", nullable=True),
}

DIVERGENCE_BLOCKS: Schema = {
    "block": _block("0 to L-1"),
    "head_norms": _real("sum over heads of ||M_h||, M_h = W_O,h W_V,h"),
    "linear_norm": _real("||W||, of the affine fit of the MLP to the stream"),
    "r_squared": _real("of the fit, held out; null below five samples", nullable=True),
}

ATTENTION_ONLY: Schema = {
    "experiment": _text("heads, head_width, width, square, parameters, narrow, routing"),
    "architecture": _text(
        "attention-only, shared-bottleneck, mlp (behind one head), frozen-attention"
    ),
    "seed": _count("of the look-up table and of the initial weights"),
    **_SHAPE,
    "hidden": _count("F, units of the MLP; 0: there is none"),
    "parameters": _count("numbers in all parameters, embeddings included"),
    "quantity": _text("accuracy, bypassed_accuracy (attention weights are the identity) or loss"),
    "value": _real("accuracies: share of the N² pairs, 0 to 1; loss: nats a pair"),
    "bound": _real(
        "of an accuracy: the theorem's least; of a bypassed one: the most possible; else null",
        nullable=True,
    ),
}

CONSTRUCTIVE: Schema = {
    "experiment": _text(
        "given (the unembedding), chosen (solved for too), of look-up tables; distribution",
    ),
    "seed": _count("of all that is random"),
    **_SHAPE,
    "sequences": _count("T, that the output matrices are solved for"),
    "unsolved": _real("ε, probability of the others; null for look-up tables", nullable=True),
    "quantity": _text(
        "accuracy (share of T), residual (of the target), table_accuracy (share of all N^S), "
        "divergence_gap (nats, from the map that is built)",
    ),
    "value": _real("of the quantity"),
    "bound": _real(
        "1 where the theorem claims it; of table_accuracy the least, in the mean over tables; of "
        "divergence_gap the most; else null",
        nullable=True,
    ),
}

ASSOCIATIVE: Schema = {
    "experiment": _text("closed (the sum of outer products) or trained"),
    "seed": _count("of the embeddings and the permutation"),
    "width": _count("D"),
    "pairs": _count("N; null where `value` is a number of pairs", nullable=True),
    "quantity": _text("accuracy, capacity_50 or capacity_99 (pairs at that accuracy)"),
    "value": _real("share of the pairs, 0 to 1; or pairs"),
    "bound": _real("of a capacity: D, as the slides have it; else null", nullable=True),
    "predicted": _real("of the closed form, by `predicted_accuracy`; else null", nullable=True),
}

LOOKUP: Schema = {
    "experiment": _text("lookup"),
    "seed": _count("of the unembeddings and the distributions"),
    "vocabulary": _count("N"),
    "width": _count("D"),
    "mistake": _real("probability of all tokens but the answer, in every context"),
    "coherence": _real("largest |inner product| of two rows of W, 0 to 1"),
    "statement": _text(
        "printed; entropy_sign (of H, corrected); corrected (and the measured coherence for C)",
    ),
    "quantity": _text("divergence"),
    "value": _real("nats, mean over the contexts"),
    "bound": _real("nats; null where the statement is undefined or claims nothing", nullable=True),
}

LOW_RANK: Schema = {
    "experiment": _text("ls or wls: which map"),
    "table": _text("the kind of table"),
    "seed": _count("of the table"),
    "vocabulary": _count("N"),
    "contexts": _count("T"),
    "rank": _count("D, of the map"),
    "statement": _text(
        "printed_conditional, printed_joint (which probability ||π|| is the largest of); variance, "
        "range, spectral (these hold always)",
    ),
    "quantity": _text("divergence"),
    "value": _real("nats, mean over the contexts"),
    "bound": _real("nats, on the value"),
}

EXPERIMENTS: Mapping[str, Schema] = {
    "associative": ASSOCIATIVE,
    "low_rank": LOW_RANK,
    "lookup": LOOKUP,
    "constructive": CONSTRUCTIVE,
    "attention_only": ATTENTION_ONLY,
}
"""Name of an experiment, of its module and of its table -> the schema of the table."""


def experiment_table(
    schema: Schema, rows: Iterable[Mapping[str, object]], **same: object
) -> pl.DataFrame:
    """The table of an experiment.

    Args:
        schema: of the table.
        rows: values by column; a column that a row lacks is null.
        same: values that are equal in all rows.
    """
    return pl.DataFrame([{**same, **row} for row in rows], schema=dtypes(schema))
