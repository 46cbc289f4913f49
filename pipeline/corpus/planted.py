"""What a corpus is written as: training rows, records, a tokenizer, benchmark tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from transformers import PreTrainedTokenizerFast

from pipeline.corpus.baselines import Frequencies, baselines
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.corpus.tasks import Document, Task, write_tasks
from pipeline.workflow import tables
from pipeline.workflow.files import atomic, write_json


@dataclass(frozen=True)
class Record:
    """A text of some kind that is planted, or with 0 copies never is.

    Copies are rows of the training data; None of a text that the model may have seen before an
    unknown number of times. It has as many tokens as a row.
    """

    kind: str
    copies: int | None
    tokens: list[int]


@dataclass(frozen=True)
class Corpus:
    """All that is generated.

    The rows of token ids are in the order in which they are stored: shuffled. Records are numbered
    from 0. A task has its documents, and what lm-eval does with them.
    """

    rows: Sequence[Sequence[int]]
    records: Sequence[Record]
    tokenizer: PreTrainedTokenizerFast
    documents: Mapping[str, Sequence[Document]]
    tasks: Mapping[str, Task]


def write(
    corpus: Corpus, folder: Path, task_folder: Path, provenance: Mapping[str, object]
) -> None:
    """Write a corpus, each folder atomically.

    One gets rows.parquet, records.parquet and tokenizer/; the other a YAML and a JSONL file a task,
    and baselines.json. `provenance` is what determines the corpus; the tables store it.
    """
    rows, records, tokenizer = corpus.rows, corpus.records, corpus.tokenizer
    frame = pl.DataFrame({"tokens": rows}, schema={"tokens": pl.List(pl.UInt32)})
    described = pl.DataFrame(
        {
            "record_id": range(len(records)),
            "kind": [record.kind for record in records],
            "copies": [record.copies for record in records],
            "tokens": [record.tokens for record in records],
        },
        schema=tables.dtypes(RECORDS),
    )
    with atomic(folder, directory=True) as temporary:
        tables.write(frame, temporary / "rows.parquet", TRAINING_ROWS, provenance)
        tables.write(described, temporary / "records.parquet", RECORDS, provenance)
        tokenizer.save_pretrained(temporary / "tokenizer")
    reached = baselines(
        corpus.documents,
        corpus.tasks,
        Frequencies(rows, len(tokenizer)),
        lambda text: list(tokenizer.backend_tokenizer.encode(text).ids),
        tokenizer.eos_token_id,
    )
    with atomic(task_folder, directory=True) as temporary:
        write_tasks(temporary, corpus.documents, corpus.tasks, reached)
        write_json(temporary / "baselines.json", reached)
