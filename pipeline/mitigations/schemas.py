"""The schema of what was measured after each edit, row by row."""

from pipeline.workflow.tables import Schema, float64, string, uint32

OUTCOMES: Schema = {
    "probe": string("dose, or a probe of durability at the chosen dose"),
    "dose": float64("strength of the edit, in the method's unit"),
    "x": float64("of the probe: tries, bits, steps or tokens; 0 of a dose"),
    "variant": string("of the probe: how the prefix changed, or which seed; else empty"),
    "split": string("forget_seen, forget_held_out, keep_…, control, text, or a task"),
    "metric": string("recited, extractable, loss, price, flat_share, min_k, acc"),
    "item": uint32("sample_id, number of the text, or document"),
    "cluster": uint32("items that belong together share it"),
    "value": float64("of the metric for the item; nats a token for loss and price"),
}
