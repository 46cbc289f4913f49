"""The schemas of the tables of the benchmark of localization."""

import polars as pl

from pipeline.workflow.tables import Column, Schema

_MODEL: Schema = {
    "model": Column(pl.String, "name of the planted model"),
    "base": Column(pl.String, "what it continues from, a key of `localization.bases`"),
    "seed": Column(pl.Int64, "of the base's training"),
    "truth": Column(pl.String, "the kind of place that learned, a key of `localization.truths`"),
}

LOCALIZATION: Schema = {
    **_MODEL,
    "place": Column(pl.String, "such as block-03, block-03.head-01, block-03.neurons-05"),
    "is_truth": Column(pl.Boolean, "whether this place learned the memorized samples"),
    "scorer": Column(pl.String, "its name; with the quantity, where it gives several"),
    "score": Column(pl.Float64, "higher: more likely a place that learned, by this scorer"),
}

REMOVAL: Schema = {
    **_MODEL,
    "scorer": Column(pl.String, "as in `localization`"),
    "places": Column(
        pl.String, "those that it names, as many as learned; their outputs are deleted"
    ),
    "exact_match": Column(pl.Float64, "share of memorized samples recited, nothing deleted"),
    "exact_match_left": Column(pl.Float64, "the same without these places"),
    "accuracy": Column(pl.Float64, "share of tokens of control samples predicted, nothing deleted"),
    "accuracy_left": Column(pl.Float64, "the same without these places"),
}

TABLES = {"scores": ("localization", LOCALIZATION), "removal": ("removal", REMOVAL)}
"""Folder of the tables of the bases -> the table that joins them, and the schema of all."""
