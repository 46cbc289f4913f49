"""Samples from texts that were inserted into training data, against a fetched stand-in."""

import datasets
import polars as pl
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.samples import inserted
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError

WORDS = {"[UNK]": 0} | {f"w{i}": i + 1 for i in range(40)}
Split = dict[str, list[object]]


def text(first: int, length: int) -> str:
    return " ".join(f"w{(first + i) % 40}" for i in range(length))


GOOD: dict[str, Split] = {
    "train": {"text": [text(0, 9), text(9, 5), text(3, 6)], "duplicates": [4, 256, 16]},
    "test": {"text": [text(20, 6)], "duplicates": [0]},
}


def fetched(monkeypatch: pytest.MonkeyPatch, splits: dict[str, Split], **how: int) -> pl.DataFrame:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = {name: datasets.Dataset.from_dict(rows) for name, rows in splits.items()}
    monkeypatch.setattr("pipeline.samples.documents.load", lambda repo, commit: (made, {}))
    monkeypatch.setattr(
        inserted,
        "fetched_tokenizer",
        lambda repo, commit: PreTrainedTokenizerFast(tokenizer_object=words),  # type: ignore[no-untyped-call]
    )
    asked = {"prefix_length": 4, "suffix_length": 2, "memorized_copies": 16} | how
    return inserted.samples(("owner/texts", "1" * 40), ("owner/model", "2" * 40), **asked)


def test_the_first_tokens_of_each_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fetched(monkeypatch, GOOD)
    assert dict(made.schema) == tables.dtypes(SAMPLES)
    assert made["split"].to_list() == ["exposed", "memorized", "control"]
    assert made["copies"].to_list() == [4, 16, 0]  # the text inserted 256 times is too short
    assert made["tokens"].to_list() == [
        [1, 2, 3, 4, 5, 6],
        [4, 5, 6, 7, 8, 9],
        [21, 22, 23, 24, 25, 26],
    ]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({"text": ["a"], "meta": ["{}"]}, "meta"),
        ({"text": [1], "duplicates": [1]}, "text .Int64."),
        ({"text": ["a"], "duplicates": ["1"]}, "duplicates .String."),
        ({"text": ["a"], "duplicates": [-1]}, "-1 in the first of 1"),
        ({"text": ["a", "b"], "duplicates": [1, None]}, "None in the first of 1"),
    ],
)
def test_other_columns_are_refused(monkeypatch: pytest.MonkeyPatch, rows: Split, told: str) -> None:
    with pytest.raises(InputError, match=told):
        fetched(monkeypatch, {**GOOD, "train": rows})


def test_without_a_memorized_or_a_control_text_there_is_nothing_to_compare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InputError, match="no memorized sample among 3 texts of 6"):
        fetched(monkeypatch, GOOD, memorized_copies=256)
    with pytest.raises(InputError, match="no control sample"):
        fetched(monkeypatch, {"train": GOOD["train"]})
