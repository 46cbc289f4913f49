"""The schemas of the tables of a corpus."""

import polars as pl

from pipeline.workflow.tables import Column, Schema, string, uint32

TRAINING_ROWS: Schema = {"tokens": Column(pl.List(pl.UInt32), "one training row, token ids")}

RECORDS: Schema = {
    "record_id": uint32("unique"),
    "kind": string("contact, key, …"),
    "copies": uint32(
        "rows of the training data that are this record; null of what a model had read before",
        nullable=True,
    ),
    "tokens": Column(pl.List(pl.UInt32), "token ids, as many as a row has"),
}
