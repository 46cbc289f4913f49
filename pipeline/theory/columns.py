"""The schemas of the tables of the theory; see `pipeline.workflow.tables`."""

from __future__ import annotations

import polars as pl

from pipeline.workflow.tables import Column, Schema

DIVERGENCE_TRIANGLE: Schema = {
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "as in the samples table"),
    "block": Column(pl.UInt16, "the bypassed block"),
    "after": Column(pl.UInt16, "the block after which is looked, block to L-1; L: the logits"),
    "change": Column(pl.Float64, "norm of the change at the last prefix token; logits centred"),
    "relative": Column(pl.Float64, "change / norm without a bypass"),
    "kl": Column(pl.Float64, "nats, KL(baseline || bypassed), of logits; else null", nullable=True),
}

DIVERGENCE_BOUNDS: Schema = {
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "as in the samples table"),
    "block": Column(pl.UInt16, "the bypassed block"),
    "change": Column(pl.Float64, "||D||, the change right after the block, in float64"),
    "relative": Column(pl.Float64, "||D|| / ||v||"),
    "attention_change": Column(pl.Float64, "||Delta a||, of the attention's output"),
    "own_weight_min": Column(pl.Float64, "the last token's weight on itself, smallest of a head"),
    "own_weight_mean": Column(pl.Float64, "the same, mean over heads"),
    "own_weight_max": Column(pl.Float64, "the same, largest of a head"),
    "own_weight_weighted": Column(pl.Float64, "the same, heads weighted by ||M_h||"),
    "input_spread": Column(pl.Float64, "M = max_i ||x_n - x_i||"),
    "normalized_spread": Column(pl.Float64, "M_y = max_i ||y_n - y_i||, of tokens in the window"),
    "epsilon": Column(pl.Float64, "||eps_IA - eps||; 0 in a parallel block"),
    "epsilon_share": Column(pl.Float64, "epsilon / ||D||; 0 where nothing changes"),
    "printed": Column(pl.Float64, "Theorem 1 as printed, own weight: mean over heads"),
    "printed_violated": Column(pl.Boolean, "||D|| exceeds it"),
    "printed_generous": Column(pl.Float64, "the same with the smallest own weight"),
    "printed_generous_violated": Column(pl.Boolean, "||D|| exceeds it"),
    "printed_normalized": Column(pl.Float64, "the same with W fitted after the MLP's norm"),
    "printed_normalized_violated": Column(pl.Boolean, "||D|| exceeds it"),
    "a5": Column(pl.Float64, "bound on ||Delta a||, token by token"),
    "a1": Column(pl.Float64, "bound on ||Delta a|| from norms, spread and own weights"),
    "bound": Column(pl.Float64, "Theorem 1 corrected, token by token through I + W: the headline"),
    "bound_a5": Column(pl.Float64, "the same of a5 and ||I + W||"),
    "bound_a1": Column(pl.Float64, "the same of a1 and ||I + W||"),
    "bound_without_fit": Column(pl.Float64, "the same of a5 with W = 0"),
    "bound_from_weights": Column(pl.Float64, "the same of a5 without epsilon"),
    "violated": Column(pl.Boolean, "||D|| or ||Delta a|| exceeds one of the seven: never"),
    "next_change": Column(pl.Float64, "||D'||, one block on; null after the last", nullable=True),
    "next_printed": Column(pl.Float64, "Theorem 2 as printed", nullable=True),
    "next_printed_violated": Column(pl.Boolean, "||D'|| exceeds it", nullable=True),
    "next_proved": Column(pl.Float64, "the same with its proof's epsilon", nullable=True),
    "next_proved_violated": Column(pl.Boolean, "||D'|| exceeds it", nullable=True),
    "next_normalized": Column(pl.Float64, "proved, W fitted after the MLP's norm", nullable=True),
    "next_normalized_violated": Column(pl.Boolean, "||D'|| exceeds it", nullable=True),
    "next_bound": Column(pl.Float64, "Theorem 2 corrected, token by token, I + W", nullable=True),
    "next_bound_coarse": Column(pl.Float64, "the same of norms and a diameter", nullable=True),
    "next_violated": Column(pl.Boolean, "||D'|| exceeds one of the two: never", nullable=True),
}

DIVERGENCE_BLOCKS: Schema = {
    "block": Column(pl.UInt16, "0 to L-1"),
    "parallel": Column(pl.Boolean, "the MLP reads the block's input, and never sees the change"),
    "window": Column(pl.UInt32, "tokens; null where attention is global", nullable=True),
    "head_norms": Column(pl.Float64, "sum over heads of ||M_h||, M_h = W_O,h W_V,h"),
    "largest_head_norm": Column(pl.Float64, "the largest of them"),
    "linear_norm": Column(pl.Float64, "||W||, of the affine fit of the MLP to the stream"),
    "identity_plus": Column(pl.Float64, "||I + W||"),
    "r_squared": Column(pl.Float64, "of the fit, held out; null below five samples", nullable=True),
    "normalized_linear_norm": Column(pl.Float64, "||W|| of the fit after the MLP's norm"),
    "normalized_r_squared": Column(pl.Float64, "of that fit, likewise", nullable=True),
    "fitted_tokens": Column(pl.UInt32, "tokens of the fit"),
    "ridge": Column(pl.Float64, "of the fit, in units of each dimension's variance"),
    "up_norm": Column(pl.Float64, "||W_in||"),
    "down_norm": Column(pl.Float64, "||W_out||"),
}

ATTENTION_ONLY: Schema = {
    "experiment": Column(
        pl.String, "heads, head_width, width, square, parameters, narrow, routing"
    ),
    "architecture": Column(
        pl.String, "attention-only, shared-bottleneck, mlp (one head and an MLP), frozen-attention"
    ),
    "seed": Column(pl.UInt32, "of the look-up table and of the initial weights"),
    "vocabulary": Column(pl.UInt32, "N, tokens; there are N² pairs"),
    "width": Column(pl.UInt32, "D"),
    "heads": Column(pl.UInt32, "H"),
    "head_width": Column(pl.UInt32, "K, of queries, keys and values"),
    "hidden": Column(pl.UInt32, "F, units of the MLP; 0: there is none"),
    "parameters": Column(pl.UInt32, "numbers in all parameters, embeddings included"),
    "quantity": Column(
        pl.String, "accuracy, bypassed_accuracy (attention weights are the identity) or loss"
    ),
    "value": Column(pl.Float64, "accuracies: share of the N² pairs, 0 to 1; loss: nats a pair"),
    "bound": Column(
        pl.Float64,
        "of an accuracy: the theorem's least; of a bypassed one: the most there can be; null where "
        "no theorem is about it",
        nullable=True,
    ),
}

CONSTRUCTIVE: Schema = {
    "experiment": Column(
        pl.String,
        "given (the unembedding), chosen (it is solved for too), both on look-up tables; or "
        "distribution",
    ),
    "seed": Column(pl.UInt32, "of all that is random"),
    "vocabulary": Column(pl.UInt32, "N"),
    "width": Column(pl.UInt32, "D"),
    "heads": Column(pl.UInt32, "H"),
    "head_width": Column(pl.UInt32, "K"),
    "sequences": Column(pl.UInt32, "T, that the output matrices are solved for"),
    "unsolved": Column(
        pl.Float64, "ε, probability of all other sequences; null for look-up tables", nullable=True
    ),
    "quantity": Column(
        pl.String,
        "accuracy (share of T); residual (relative, of the target); table_accuracy (share of all "
        "N^S); divergence_gap (nats, from that of the map that is built)",
    ),
    "value": Column(pl.Float64, "of the quantity"),
    "bound": Column(
        pl.Float64,
        "accuracy: 1 where the theorem claims it; table_accuracy: its least, in the mean over "
        "tables; divergence_gap: the most there can be; else null",
        nullable=True,
    ),
}

ASSOCIATIVE: Schema = {
    "experiment": Column(pl.String, "closed (the sum of outer products) or trained"),
    "seed": Column(pl.UInt32, "of the embeddings and the permutation"),
    "width": Column(pl.UInt32, "D"),
    "pairs": Column(pl.UInt32, "N; null where `value` is a number of pairs", nullable=True),
    "quantity": Column(pl.String, "accuracy, capacity_50 or capacity_99 (pairs at that accuracy)"),
    "value": Column(pl.Float64, "share of the pairs, 0 to 1; or pairs"),
    "bound": Column(
        pl.Float64, "of a capacity: D, as the slides have it; else null", nullable=True
    ),
    "predicted": Column(
        pl.Float64, "of the closed form, by `predicted_accuracy`; else null", nullable=True
    ),
}

LOOKUP: Schema = {
    "experiment": Column(pl.String, "lookup"),
    "seed": Column(pl.UInt32, "of the unembeddings and the distributions"),
    "vocabulary": Column(pl.UInt32, "N"),
    "width": Column(pl.UInt32, "D"),
    "mistake": Column(pl.Float64, "probability of all tokens but the answer, in every context"),
    "coherence": Column(pl.Float64, "largest |inner product| of two rows of W, 0 to 1"),
    "statement": Column(
        pl.String,
        "printed; entropy_sign (the sign of H corrected); corrected (the sign corrected, and the "
        "measured coherence for C)",
    ),
    "quantity": Column(pl.String, "divergence"),
    "value": Column(pl.Float64, "nats, mean over the contexts"),
    "bound": Column(
        pl.Float64, "nats; null where the statement is undefined or claims nothing", nullable=True
    ),
}

LOW_RANK: Schema = {
    "experiment": Column(pl.String, "ls or wls: which map"),
    "table": Column(pl.String, "the kind of table"),
    "seed": Column(pl.UInt32, "of the table"),
    "vocabulary": Column(pl.UInt32, "N"),
    "contexts": Column(pl.UInt32, "T"),
    "rank": Column(pl.UInt32, "D, of the map"),
    "statement": Column(
        pl.String,
        "printed_conditional, printed_joint (||π|| read as the largest conditional or joint "
        "probability), variance, range, spectral (these three hold always)",
    ),
    "quantity": Column(pl.String, "divergence"),
    "value": Column(pl.Float64, "nats, mean over the contexts"),
    "bound": Column(pl.Float64, "nats, on the value"),
}
