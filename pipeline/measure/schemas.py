"""The tables of measurements, apart from memorization: columns, their types, meanings and units.

Beside the code that writes them, and without torch or lm-eval, since reports read them as well.
"""

import polars as pl

from pipeline.workflow.tables import (
    Column,
    Schema,
    boolean,
    float32,
    float64,
    string,
    uint16,
    uint16s,
    uint32,
    uint32s,
)

INTERVENTIONS: Schema = {
    "intervention": string("its name: baseline, block-00 …, quartile-1 …; unique"),
    "edit": string(
        "what is done to its blocks: identity, zero, …, edits/FILE.py:FUNCTION; null: baseline",
        nullable=True,
    ),
    "group": string(
        "which blocks together: baseline, each, quartiles, …; blocks if they were listed; then "
        "what the edit is limited to, such as each.suffix"
    ),
    "blocks": uint16s("edited blocks, 0-based, ascending"),
    "heads": uint16s("attention heads that alone are edited, 0-based; null: all", nullable=True),
    "draw": uint16("which of several random draws, from 1; else null", nullable=True),
    "seed": uint32("of the directions of the edit noise; else 0"),
    "neurons": uint16s("columns of the MLP's inner width; null: all", nullable=True),
    "positions": string(
        "edited positions: prefix, suffix, last (of the prefix); null: all", nullable=True
    ),
    "source": string("model of the study whose values are put in; null: none", nullable=True),
}

TOKENS: Schema = {
    "intervention": string("as in the interventions table"),
    "sample_id": uint32("as in the samples table"),
    "split": string("memorized or control"),
    "shown": string(
        "reason to show the sample: survives, fragile, rejoins, random, control; else null",
        nullable=True,
    ),
    "position": uint16("in the suffix, from 0"),
    "token": uint32("the true token's id"),
    "greedy": uint32("id of the likeliest token, given the true ones before it"),
    "log_prob": float32("nats, of the true token, likewise"),
    "rank": uint32("of the true token, from 1"),
    "entropy": float32("nats, of the distribution at this position"),
    "margin": float32("logits, from the largest to the second largest"),
}

DISPLACEMENT: Schema = {
    "intervention": string("as in the interventions table"),
    "block": uint16("last edited block, after which it is measured; null: baseline", nullable=True),
    "sample_id": uint32("as in the samples table"),
    "split": string("memorized or control"),
    "first": float64("||edited - unedited|| / ||unedited|| of the stream at position 0"),
    "others": float64("the same, mean over all later positions; null without", nullable=True),
}

ATTENTION_CHANGE: Schema = {
    "block": uint16("0 to L-1"),
    "sample_id": uint32("as in the samples table"),
    "split": string("memorized or control"),
    "first": float64(
        "1 - cos(x, x + attention(x)) at position 0, x the block's input; null where a block adds "
        "more than attention and MLP return",
        nullable=True,
    ),
    "others": float64("the same, mean over all later positions", nullable=True),
}

CERTIFICATES: Schema = {
    "edit": string("as in the interventions table"),
    "scope": string("what it was limited to: heads, neurons, positions; or nothing"),
    "blocks": uint16s("blocks in which it was tried"),
    "passed": Column(pl.List(pl.String), "the checks, all of which an edit has to pass"),
    "change": float64("largest change of a value at its site; 0: it changes nothing in this model"),
    "difference": float64("largest difference from the plain loop, relative to the largest state"),
}

BENCHMARKS: Schema = {
    "intervention": string("as in the interventions table"),
    "task": string("as lm-eval names it"),
    "metric": string("as lm-eval names it: acc, acc_norm, word_perplexity, …"),
    "value": float64("as lm-eval aggregates it"),
    "stderr": float64("as lm-eval computes it; null where it has none", nullable=True),
    "n": uint32("documents"),
    "higher_is_better": boolean("the direction of the metric"),
    "chance": float64(
        "accuracy without reading: as the task's metadata states it, else of a blind guess among "
        "the choices; null if not defined",
        nullable=True,
    ),
}

BENCHMARK_DOCUMENTS: Schema = {
    "intervention": string("as in the interventions table"),
    "task": string("as lm-eval names it"),
    "doc_id": uint32("the document's position in the task's split"),
    "category": string(
        "of the document, in the field that the task's metadata names; null without one",
        nullable=True,
    ),
    "metric": string("as lm-eval names it"),
    "value": float64("the document's own value, before aggregation"),
}

GENERATIONS: Schema = {
    "intervention": string("baseline, block-00 …; a block alone"),
    "prompt_id": uint32("the prompt's position in the list, from 0"),
    "decoding": string("greedy, or sampled (temperature 1)"),
    "prompt": string("text"),
    "prompt_tokens": uint32s("token ids of the prompt"),
    "continuation": uint32s("token ids after the prompt, equally many a row"),
    "text": string("the continuation alone, decoded"),
    "first_difference": uint16(
        "tokens before the first that is not the baseline's; null where all are", nullable=True
    ),
    "first_difference_character": uint32(
        "the characters of text before that token; null as above", nullable=True
    ),
    "baseline_perplexity": float64(
        "perplexity of the continuation under the unmodified model, per token; 1 or more"
    ),
    "distinct_bigrams": float64(
        "share of the continuation's pairs of neighbouring tokens that differ; 0 to 1"
    ),
}

ATTRIBUTION: Schema = {
    "sample_id": uint32("as in the samples table"),
    "split": string("as in the samples table"),
    "block": uint16("0 to L-1"),
    "part": string("attention or mlp: whose output it is"),
    "value": float64(
        "nats: |gradient of the suffix's loss · output|, mean over the sample's tokens"
    ),
}

ROLLING, EXACT = "rolling", "exact"

WINDOWS: Schema = {
    "intervention": string("as in the interventions table"),
    "document": string("name of its file"),
    "start": uint32("the window's first token in the document, from 0"),
    "prefix_length": uint16("tokens from there to the suffix"),
    "suffix_length": uint16("tokens of the suffix"),
    "log_prob": float64("nats, of the suffix given the tokens before it"),
    "log_prob_top_40": float64(
        "the same under top-k sampling with k = 40; -inf if a token's rank is above 40"
    ),
    "reading": string("exact: given the prefix alone; rolling: given `context` tokens"),
    "context": uint32("tokens read before the suffix, prefix_length or more"),
    "first_character": uint32("the suffix's first character in the document"),
    "end_character": uint32("the character behind its last one"),
    "reference": boolean("whether the document is one that the model cannot know"),
}

RECITED: Schema = {
    "intervention": string("as in the interventions table"),
    "document": string("name of its file"),
    "start": uint32("the seed's first token in the document"),
    "seed_length": uint16("tokens of the seed, which the model reads"),
    "length": uint32("tokens that it then writes greedily"),
    "verbatim": uint32("those before the first that is not the document's"),
    "near_verbatim_recall": float64(
        "share of the document's next tokens in near-verbatim blocks of 20 or more"
    ),
    "text": string("what the model wrote"),
}
