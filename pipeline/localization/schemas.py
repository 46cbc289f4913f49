"""The schemas of the tables of the benchmark of localization."""

import polars as pl

from pipeline.workflow.tables import Column, Schema, boolean, float64, string

_MODEL: Schema = {
    "model": string("name of the planted model"),
    "base": string("what it continues from, a key of `localization.bases`"),
    "seed": Column(pl.Int64, "of the base's training"),
    "truth": string("the kind of place that learned, a key of `localization.truths`"),
}

LOCALIZATION: Schema = {
    **_MODEL,
    "place": string("such as block-03, block-03.head-01, block-03.neurons-05"),
    "is_truth": boolean("whether this place learned the memorized samples"),
    "scorer": string("its name; with the quantity, where it gives several"),
    "score": float64("higher: more likely a place that learned, by this scorer"),
}

REMOVAL: Schema = {
    **_MODEL,
    "scorer": string("as in `localization`"),
    "places": string("those that it names, as many as learned; their outputs are deleted"),
    "exact_match": float64("share of memorized samples recited, nothing deleted"),
    "exact_match_left": float64("the same without these places"),
    "accuracy": float64("share of tokens of control samples predicted, nothing deleted"),
    "accuracy_left": float64("the same without these places"),
}

TABLES = {"scores": ("localization", LOCALIZATION), "removal": ("removal", REMOVAL)}
"""Folder of the tables of the bases -> the table that joins them, and the schema of all."""
