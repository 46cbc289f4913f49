"""The tables of measurements, apart from memorization: columns, their types, meanings and units.

Beside the code that writes them, and without torch or lm-eval, since reports read them as well.
"""

from __future__ import annotations

import polars as pl

from pipeline.workflow.tables import Column, Schema

INTERVENTIONS: Schema = {
    "intervention": Column(pl.String, "its name: baseline, block-00 …, quartile-1 …; unique"),
    "edit": Column(
        pl.String,
        "what is done to its blocks: identity, zero, …, edits/FILE.py:FUNCTION; null: baseline",
        nullable=True,
    ),
    "group": Column(
        pl.String,
        "which blocks together: baseline, each, quartiles, …; blocks if they were listed; then "
        "what the edit is limited to, such as each.suffix",
    ),
    "blocks": Column(pl.List(pl.UInt16), "edited blocks, 0-based, ascending"),
    "heads": Column(
        pl.List(pl.UInt16),
        "attention heads that alone are edited, 0-based; null: all",
        nullable=True,
    ),
    "draw": Column(pl.UInt16, "which of several random draws, from 1; else null", nullable=True),
    "seed": Column(pl.UInt32, "of the directions of the edit noise; else 0"),
    "neurons": Column(
        pl.List(pl.UInt16), "columns of the MLP's inner width; null: all", nullable=True
    ),
    "positions": Column(
        pl.String,
        "edited positions: prefix, suffix, last (of the prefix); null: all",
        nullable=True,
    ),
    "source": Column(
        pl.String, "model of the study whose values are put in; null: none", nullable=True
    ),
}

TOKENS: Schema = {
    "intervention": Column(pl.String, "as in the interventions table"),
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "memorized or control"),
    "shown": Column(
        pl.String,
        "reason to show the sample: survives, fragile, rejoins, random, control; else null",
        nullable=True,
    ),
    "position": Column(pl.UInt16, "in the suffix, from 0"),
    "token": Column(pl.UInt32, "the true token's id"),
    "greedy": Column(pl.UInt32, "id of the likeliest token, given the true ones before it"),
    "log_prob": Column(pl.Float32, "nats, of the true token, likewise"),
    "rank": Column(pl.UInt32, "of the true token, from 1"),
    "entropy": Column(pl.Float32, "nats, of the distribution at this position"),
    "margin": Column(pl.Float32, "logits, from the largest to the second largest"),
}

DISPLACEMENT: Schema = {
    "intervention": Column(pl.String, "as in the interventions table"),
    "block": Column(
        pl.UInt16,
        "last edited block, after which it is measured; null: baseline",
        nullable=True,
    ),
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "memorized or control"),
    "first": Column(pl.Float64, "||edited - unedited|| / ||unedited|| of the stream at position 0"),
    "others": Column(
        pl.Float64, "the same, mean over all later positions; null without", nullable=True
    ),
}

ATTENTION_CHANGE: Schema = {
    "block": Column(pl.UInt16, "0 to L-1"),
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "memorized or control"),
    "first": Column(
        pl.Float64,
        "1 - cos(x, x + attention(x)) at position 0, x the block's input; null where a block adds "
        "more than attention and MLP return",
        nullable=True,
    ),
    "others": Column(pl.Float64, "the same, mean over all later positions", nullable=True),
}

CERTIFICATES: Schema = {
    "edit": Column(pl.String, "as in the interventions table"),
    "scope": Column(pl.String, "what it was limited to: heads, neurons, positions; or nothing"),
    "blocks": Column(pl.List(pl.UInt16), "blocks in which it was tried"),
    "passed": Column(pl.List(pl.String), "the checks, all of which an edit has to pass"),
    "change": Column(
        pl.Float64, "largest change of a value at its site; 0: it changes nothing in this model"
    ),
    "difference": Column(
        pl.Float64, "largest difference from the plain loop, relative to the largest state"
    ),
}

BENCHMARKS: Schema = {
    "intervention": Column(pl.String, "as in the interventions table"),
    "task": Column(pl.String, "as lm-eval names it"),
    "metric": Column(pl.String, "as lm-eval names it: acc, acc_norm, word_perplexity, …"),
    "value": Column(pl.Float64, "as lm-eval aggregates it"),
    "stderr": Column(pl.Float64, "as lm-eval computes it; null where it has none", nullable=True),
    "n": Column(pl.UInt32, "documents"),
    "higher_is_better": Column(pl.Boolean, "the direction of the metric"),
    "chance": Column(
        pl.Float64,
        "accuracy without reading: as the task's metadata states it, else of a blind guess among "
        "the choices; null if not defined",
        nullable=True,
    ),
}

BENCHMARK_DOCUMENTS: Schema = {
    "intervention": Column(pl.String, "as in the interventions table"),
    "task": Column(pl.String, "as lm-eval names it"),
    "doc_id": Column(pl.UInt32, "the document's position in the task's split"),
    "category": Column(
        pl.String,
        "of the document, in the field that the task's metadata names; null without one",
        nullable=True,
    ),
    "metric": Column(pl.String, "as lm-eval names it"),
    "value": Column(pl.Float64, "the document's own value, before aggregation"),
}

GENERATIONS: Schema = {
    "intervention": Column(pl.String, "baseline, block-00 …; a block alone"),
    "prompt_id": Column(pl.UInt32, "the prompt's position in the list, from 0"),
    "decoding": Column(pl.String, "greedy, or sampled (temperature 1)"),
    "prompt": Column(pl.String, "text"),
    "prompt_tokens": Column(pl.List(pl.UInt32), "token ids of the prompt"),
    "continuation": Column(pl.List(pl.UInt32), "token ids after the prompt, equally many a row"),
    "text": Column(pl.String, "the continuation alone, decoded"),
    "first_difference": Column(
        pl.UInt16,
        "tokens before the first that is not the baseline's; null where all are",
        nullable=True,
    ),
    "first_difference_character": Column(
        pl.UInt32, "the characters of text before that token; null as above", nullable=True
    ),
    "baseline_perplexity": Column(
        pl.Float64,
        "perplexity of the continuation under the unmodified model, per token; 1 or more",
    ),
    "distinct_bigrams": Column(
        pl.Float64, "share of the continuation's pairs of neighbouring tokens that differ; 0 to 1"
    ),
}

ATTRIBUTION: Schema = {
    "sample_id": Column(pl.UInt32, "as in the samples table"),
    "split": Column(pl.String, "as in the samples table"),
    "block": Column(pl.UInt16, "0 to L-1"),
    "part": Column(pl.String, "attention or mlp: whose output it is"),
    "value": Column(
        pl.Float64,
        "nats: |gradient of the suffix's loss · output|, mean over the sample's tokens",
    ),
}

ROLLING, EXACT = "rolling", "exact"

WINDOWS: Schema = {
    "intervention": Column(pl.String, "as in the interventions table"),
    "document": Column(pl.String, "name of its file"),
    "start": Column(pl.UInt32, "the window's first token in the document, from 0"),
    "prefix_length": Column(pl.UInt16, "tokens from there to the suffix"),
    "suffix_length": Column(pl.UInt16, "tokens of the suffix"),
    "log_prob": Column(pl.Float64, "nats, of the suffix given the tokens before it"),
    "log_prob_top_40": Column(
        pl.Float64, "the same under top-k sampling with k = 40; -inf if a token's rank is above 40"
    ),
    "reading": Column(pl.String, "exact: given the prefix alone; rolling: given `context` tokens"),
    "context": Column(pl.UInt32, "tokens read before the suffix, prefix_length or more"),
    "first_character": Column(pl.UInt32, "the suffix's first character in the document"),
    "end_character": Column(pl.UInt32, "the character behind its last one"),
    "reference": Column(pl.Boolean, "whether the document is one that the model cannot know"),
}

RECITED: Schema = {
    "intervention": Column(pl.String, "as in the interventions table"),
    "document": Column(pl.String, "name of its file"),
    "start": Column(pl.UInt32, "the seed's first token in the document"),
    "seed_length": Column(pl.UInt16, "tokens of the seed, which the model reads"),
    "length": Column(pl.UInt32, "tokens that it then writes greedily"),
    "verbatim": Column(pl.UInt32, "those before the first that is not the document's"),
    "near_verbatim_recall": Column(
        pl.Float64, "share of the document's next tokens in near-verbatim blocks of 20 or more"
    ),
    "text": Column(pl.String, "what the model wrote"),
}
