"""The schema of what was measured after each edit, row by row."""

import polars as pl

from pipeline.workflow.tables import Column, Schema

OUTCOMES: Schema = {
    "probe": Column(pl.String, "dose, or a probe of durability at the chosen dose"),
    "dose": Column(pl.Float64, "strength of the edit, in the method's unit"),
    "x": Column(pl.Float64, "of the probe: tries, bits, steps or tokens; 0 of a dose"),
    "variant": Column(pl.String, "of the probe: how the prefix changed, or which seed; else empty"),
    "split": Column(pl.String, "forget_seen, forget_held_out, keep_…, control, text, or a task"),
    "metric": Column(pl.String, "recited, extractable, loss, price, flat_share, min_k, acc"),
    "item": Column(pl.UInt32, "sample_id, number of the text, or document"),
    "cluster": Column(pl.UInt32, "items that belong together share it"),
    "value": Column(pl.Float64, "of the metric for the item; nats a token for loss and price"),
}
