"""The schemas of the tables of a corpus."""

from pipeline.workflow.tables import Schema, string, uint32, uint32s

TRAINING_ROWS: Schema = {"tokens": uint32s("one training row, token ids")}

RECORDS: Schema = {
    "record_id": uint32("unique"),
    "kind": string("contact, key, …"),
    "copies": uint32(
        "rows of the training data that are this record; null of what a model had read before",
        nullable=True,
    ),
    "tokens": uint32s("token ids, as many as a row has"),
}
