"""What the columns of the figures' data mean."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.workflow import tables

_OWN = {
    "ability": "kind of task: reasoning or language",
    "after": "block after which the change is measured, 0-based; the number of blocks: the logits",
    "architecture": "attention-only, mlp or shared-bottleneck",
    "block": "bypassed block, 0-based, from the input; empty unless one block alone is bypassed",
    "bound": "what a theorem promises or allows, in the unit of value",
    "called": "scorer, as the page calls it",
    "chance": "score of blind guessing; empty where it is not defined",
    "change": "length by which the last token is moved, median over samples",
    "coarse": "bound of norms and spread, in the unit of change",
    "copies": "number of times that a sample occurs in the training data",
    "corrected": "corrected bound, in the unit of change",
    "corrected_violated": "samples whose change exceeds the corrected bound",
    "drop": "share of the baseline that is lost, 0 to 1",
    "experiment": "of the theory, by name",
    "head_width": "d_h, width of a head",
    "heads": "H, number of heads",
    "hidden": "width of the MLP; 0: none",
    "higher_is_better": "whether more of the metric is better",
    "kept": "share of the baseline that is left; 0: chance, or what control samples reach",
    "kind": "memorization, benchmark, or mean over the benchmarks",
    "kl": "divergence of the next-token distributions, nats",
    "label": "of the curve",
    "lost": "share of the baseline that is lost, 0 to 1",
    "lost_high": "upper end of the 95% interval of lost",
    "lost_low": "lower end of the 95% interval of lost",
    "mean": "of the quantity, over memorized samples",
    "measure": "what is left or lost: exact_match, a task, or the mean over the tasks",
    "memorized": "exact match on memorized samples under the same intervention, 0 to 1",
    "memorized_high": "upper end of the 95% interval of memorized",
    "memorized_low": "lower end of the 95% interval of memorized",
    "n_blocks": "L, blocks of the model",
    "parameters": "of the model",
    "part": "what of a block learned the memorized samples: attention, mlp or both",
    "printed": "bound as the paper prints it, in the unit of change",
    "printed_violated": "samples whose change exceeds the printed bound",
    "quantity": "what is measured, by name",
    "quartile": "bypassed quarter of the blocks, 1 to 4; 0: nothing bypassed",
    "rank": "of the map",
    "recall": "share of models in which the scorer names the block that learned, 0 to 1",
    "recall_chance": "recall of a random answer",
    "recall_high": "upper end of the 95% interval of recall",
    "recall_low": "lower end of the 95% interval of recall",
    "reciprocal": "mean over models of 1 / rank of the block that learned, 0 to 1",
    "reciprocal_chance": "reciprocal of a random order",
    "reciprocal_high": "upper end of the 95% interval of reciprocal",
    "reciprocal_low": "lower end of the 95% interval of reciprocal",
    "relative": "change as a share of the length without a bypass, median over samples",
    "scale": "raw: of the score; corrected: of its lead over chance",
    "scorer": "edit of one block, divergence or gradient",
    "seeds": "trainings that the number is a mean of",
    "split": "of the samples: memorized, exposed, control or famous",
    "statement": "bound, by name",
    "stored_in": "where the model stores: heads, mlp or frozen head",
    "table": "kind of table that is approximated",
    "tasks": "benchmarks that the mean is over",
    "vocabulary": "V, number of tokens",
    "width": "D, width of the model",
}

MEANINGS: Mapping[str, str] = {
    **{name: column.meaning for name, column in tables.SUMMARY.items()},
    **_OWN,
}
"""Column -> what it means, with its unit."""
