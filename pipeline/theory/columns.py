"""The schemas of the tables of the theory; see `pipeline.workflow.tables`."""

from collections.abc import Iterable, Mapping

import polars as pl

from pipeline.workflow.tables import Schema, boolean, dtypes, float64, string, uint16, uint32

_BYPASS: Schema = {
    "sample_id": uint32("as in the samples table"),
    "split": string("as in the samples table"),
    "block": uint16("the bypassed block"),
}

_SHAPE: Schema = {
    "vocabulary": uint32("N, tokens"),
    "width": uint32("D"),
    "heads": uint32("H"),
    "head_width": uint32("K, of queries, keys and values"),
}

DIVERGENCE_TRIANGLE: Schema = {
    **_BYPASS,
    "after": uint16("the block after which is looked, block to L-1; L: the logits"),
    "change": float64("norm of the change at the last prefix token; logits centred"),
    "relative": float64("change / norm without a bypass"),
    "kl": float64("nats, KL(baseline || bypassed), of logits; else null", nullable=True),
}

DIVERGENCE_BOUNDS: Schema = {
    **_BYPASS,
    "change": float64("||D||, the change right after the block, in float64"),
    "relative": float64("||D|| / ||v||"),
    "attention_change": float64("||Delta a||, of the attention's output"),
    "own_weight_min": float64("the last token's weight on itself, smallest of a head"),
    "own_weight_mean": float64("the same, mean over heads"),
    "own_weight_max": float64("the same, largest of a head"),
    "own_weight_weighted": float64("the same, heads weighted by ||M_h||"),
    "input_spread": float64("M = max_i ||x_n - x_i||"),
    "normalized_spread": float64("M_y = max_i ||y_n - y_i||, of tokens in the window"),
    "epsilon": float64("||eps_IA - eps||; 0 in a parallel block"),
    "epsilon_share": float64("epsilon / ||D||; 0 where nothing changes"),
    "printed": float64("Theorem 1 as printed, own weight: mean over heads"),
    "printed_violated": boolean("||D|| exceeds it"),
    "printed_generous": float64("the same with the smallest own weight"),
    "printed_generous_violated": boolean("||D|| exceeds it"),
    "printed_normalized": float64("the same with W fitted after the MLP's norm"),
    "printed_normalized_violated": boolean("||D|| exceeds it"),
    "a5": float64("bound on ||Delta a||, token by token"),
    "a1": float64("bound on ||Delta a|| from norms, spread and own weights"),
    "bound": float64("Theorem 1 corrected, token by token through I + W: the headline"),
    "bound_a5": float64("the same of a5 and ||I + W||"),
    "bound_a1": float64("the same of a1 and ||I + W||"),
    "bound_without_fit": float64("the same of a5 with W = 0"),
    "bound_from_weights": float64("the same of a5 without epsilon"),
    "violated": boolean("||D|| or ||Delta a|| exceeds one of the seven: never"),
    "next_change": float64("||D'||, one block on; null after the last", nullable=True),
    "next_printed": float64("Theorem 2 as printed", nullable=True),
    "next_printed_violated": boolean("||D'|| exceeds it", nullable=True),
    "next_proved": float64("the same with its proof's epsilon", nullable=True),
    "next_proved_violated": boolean("||D'|| exceeds it", nullable=True),
    "next_normalized": float64("proved, W fitted after the MLP's norm", nullable=True),
    "next_normalized_violated": boolean("||D'|| exceeds it", nullable=True),
    "next_bound": float64("Theorem 2 corrected, token by token, I + W", nullable=True),
    "next_bound_coarse": float64("the same of norms and a diameter", nullable=True),
    "next_violated": boolean("||D'|| exceeds one of the two: never", nullable=True),
}

DIVERGENCE_BLOCKS: Schema = {
    "block": uint16("0 to L-1"),
    "head_norms": float64("sum over heads of ||M_h||, M_h = W_O,h W_V,h"),
    "linear_norm": float64("||W||, of the affine fit of the MLP to the stream"),
    "r_squared": float64("of the fit, held out; null below five samples", nullable=True),
}

DIVERGENCE: Mapping[str, Schema] = {
    "": DIVERGENCE_TRIANGLE,
    ".bounds": DIVERGENCE_BOUNDS,
    ".blocks": DIVERGENCE_BLOCKS,
}
"""What follows a model's name in the name of a table -> its schema."""

ATTENTION_ONLY: Schema = {
    "experiment": string("heads, head_width, width, square, parameters, narrow, routing"),
    "architecture": string(
        "attention-only, shared-bottleneck, mlp (behind one head), frozen-attention"
    ),
    "seed": uint32("of the look-up table and of the initial weights"),
    **_SHAPE,
    "hidden": uint32("F, units of the MLP; 0: there is none"),
    "parameters": uint32("numbers in all parameters, embeddings included"),
    "quantity": string("accuracy, bypassed_accuracy (attention weights are the identity) or loss"),
    "value": float64("accuracies: share of the N² pairs, 0 to 1; loss: nats a pair"),
    "bound": float64(
        "of an accuracy: the theorem's least; of a bypassed one: the most possible; else null",
        nullable=True,
    ),
}

CONSTRUCTIVE: Schema = {
    "experiment": string(
        "given (the unembedding), chosen (solved for too), of look-up tables; distribution"
    ),
    "seed": uint32("of all that is random"),
    **_SHAPE,
    "sequences": uint32("T, that the output matrices are solved for"),
    "unsolved": float64("ε, probability of the others; null for look-up tables", nullable=True),
    "quantity": string(
        "accuracy (share of T), residual (of the target), table_accuracy (share of all N^S), "
        "divergence_gap (nats, from the map that is built)"
    ),
    "value": float64("of the quantity"),
    "bound": float64(
        "1 where the theorem claims it; of table_accuracy the least, in the mean over tables; of "
        "divergence_gap the most; else null",
        nullable=True,
    ),
}

ASSOCIATIVE: Schema = {
    "experiment": string("closed (the sum of outer products) or trained"),
    "seed": uint32("of the embeddings and the permutation"),
    "width": uint32("D"),
    "pairs": uint32("N; null where `value` is a number of pairs", nullable=True),
    "quantity": string("accuracy, capacity_50 or capacity_99 (pairs at that accuracy)"),
    "value": float64("share of the pairs, 0 to 1; or pairs"),
    "bound": float64("of a capacity: D, as the slides have it; else null", nullable=True),
    "predicted": float64("of the closed form, by `predicted_accuracy`; else null", nullable=True),
}

LOOKUP: Schema = {
    "experiment": string("lookup"),
    "seed": uint32("of the unembeddings and the distributions"),
    "vocabulary": uint32("N"),
    "width": uint32("D"),
    "mistake": float64("probability of all tokens but the answer, in every context"),
    "coherence": float64("largest |inner product| of two rows of W, 0 to 1"),
    "statement": string(
        "printed; entropy_sign (of H, corrected); corrected (and the measured coherence for C)"
    ),
    "quantity": string("divergence"),
    "value": float64("nats, mean over the contexts"),
    "bound": float64(
        "nats; null where the statement is undefined or claims nothing", nullable=True
    ),
}

LOW_RANK: Schema = {
    "experiment": string("ls or wls: which map"),
    "table": string("the kind of table"),
    "seed": uint32("of the table"),
    "vocabulary": uint32("N"),
    "contexts": uint32("T"),
    "rank": uint32("D, of the map"),
    "statement": string(
        "printed_conditional, printed_joint (which probability ||π|| is the largest of); variance, "
        "range, spectral (these hold always)"
    ),
    "quantity": string("divergence"),
    "value": float64("nats, mean over the contexts"),
    "bound": float64("nats, on the value"),
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
    """The table of an experiment; a column that a row lacks is null, and `same` are in all rows."""
    return pl.DataFrame([{**same, **row} for row in rows], schema=dtypes(schema))
