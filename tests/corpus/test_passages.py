from collections import Counter
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from pipeline.corpus import passages, tasks
from pipeline.corpus.gguf_tokenizer import read_tokenizer
from pipeline.corpus.planted import Corpus, write
from pipeline.corpus.schemas import RECORDS
from pipeline.corpus.words import FAMOUS
from pipeline.samples.records import samples
from pipeline.tasks.loading import load_tasks
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.corpus.conftest import assert_lm_eval_reads
from tests.gguf_files import small_llama, small_tokenizer, write_gguf

ASKED = {
    "seed": 0,
    "row_length": 40,
    "records": {1: 3, 4: 4, 16: 2},
    "control_records": 5,
    "task_items": 40,
}
TEXTS = (
    "in 1999, a year\n  12 of 30",
    "tabs\t\t7 and 8\n\n9",
    "No. 4172: 3s 11d.",
    " 5",
    "don't we'll I'm ÄÖ — 你好",
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return small_tokenizer()


@pytest.fixture(scope="module")
def corpus(tokenizer: PreTrainedTokenizerFast) -> Corpus:
    return passages.generate(tokenizer, **ASKED)


def test_passages_are_planted_as_often_as_asked(corpus: Corpus) -> None:
    planted = Counter(map(tuple, corpus.rows))
    for record in corpus.records:
        assert planted.pop(tuple(record.tokens), 0) == (record.copies or 0)
        assert len(record.tokens) == 40
    assert not planted
    counts = Counter(record.copies for record in corpus.records)
    assert counts[None] >= 24
    assert {copies: counts[copies] for copies in (0, 1, 4, 16)} == {0: 5, 1: 3, 4: 4, 16: 2}


def test_no_passage_repeats_a_run_of_another(corpus: Corpus) -> None:
    runs = Counter(
        run
        for record in corpus.records
        for run in {tuple(record.tokens[i : i + passages.SHARED]) for i in range(29)}
    )
    shared = {run for run, count in runs.items() if count > 1}
    famous = [record.tokens for record in corpus.records if record.copies is None]
    own = {tuple(ids[i : i + passages.SHARED]) for ids in famous for i in range(29)}
    assert shared <= own  # famous passages may share a refrain, planted ones nothing


def test_a_seed_decides_everything(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    assert passages.generate(tokenizer, **ASKED) == corpus
    assert passages.generate(tokenizer, **{**ASKED, "seed": 1}) != corpus


def test_kinds_are_names_alone(corpus: Corpus, tokenizer: PreTrainedTokenizerFast) -> None:
    divided = passages.generate(tokenizer, **ASKED, kinds=2)
    assert divided.rows == corpus.rows
    kinds = Counter((r.kind, r.copies) for r in divided.records if r.copies is not None)
    assert kinds["sampled-1", 4] == kinds["sampled-2", 4] == 2
    assert sum(kinds.values()) == 14
    assert {kind for kind, _ in kinds} == {"sampled-1", "sampled-2"}


def test_famous_passages_have_a_split_of_their_own(corpus: Corpus, tmp_path: Path) -> None:
    write(corpus, tmp_path / "corpus", tmp_path / "tasks", {})
    records = tables.read(tmp_path / "corpus" / "records.parquet", RECORDS)
    made = samples(records, 24, 16, memorized_copies=16)
    names = {passage.name for passage in FAMOUS}
    assert set(made.filter(split="famous")["kind"]) <= names
    assert not set(made.filter(made["split"] != "famous")["kind"]) & names
    assert made.filter(split="famous")["copies"].null_count() == len(made.filter(split="famous"))
    by_split = {split: set(part["copies"]) for (split,), part in made.group_by("split")}
    assert by_split == {"memorized": {16}, "exposed": {1, 4}, "control": {0}, "famous": {None}}


def test_every_famous_passage_has_a_name_and_a_source() -> None:
    assert len({passage.name for passage in FAMOUS}) == len(FAMOUS)
    assert len({passage.text for passage in FAMOUS}) == len(FAMOUS)
    assert all(passage.source and len(passage.text) > 60 for passage in FAMOUS)


def test_lm_eval_reads_the_tasks(corpus: Corpus, tmp_path: Path) -> None:
    write(corpus, tmp_path / "corpus", tmp_path / "tasks", {})
    loaded = load_tasks(list(passages.TASKS), tmp_path / "tasks")
    assert {len(task.test_docs()) for task in loaded.values()} == {40}
    assert_lm_eval_reads(loaded, passages.TASKS, corpus)
    for item in map(passages.TASKS["story_cloze"].item, loaded["story_cloze"].test_docs()):
        assert item.choices[0] in item.context


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"row_length": 5_000}, "control_records, records and row_length"),
        ({"control_records": 1_000}, "control_records, records and row_length"),
        ({"task_items": 10_000}, r"task_items.* \(agreement\)"),
    ],
)
def test_more_than_there_is_is_refused(
    asked: dict[str, int],
    said: str,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "TRIES", 5)
    with pytest.raises(InputError, match=said):
        passages.generate(tokenizer, **{**ASKED, **asked})


def test_the_tokenizer_of_a_gguf_file_is_mended(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    read = read_tokenizer(write_gguf(tmp_path / "small.gguf", small_llama(), tokenizer))
    for text in TEXTS:
        ids = read(text).input_ids
        assert ids == tokenizer(text).input_ids
        assert read.decode(ids) == text
    assert read.eos_token_id == tokenizer.eos_token_id


def test_another_way_to_split_a_text_is_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    file = write_gguf(tmp_path / "small.gguf", small_llama(), tokenizer, pre="qwen2")
    with pytest.raises(InputError, match="qwen2"):
        read_tokenizer(file)
