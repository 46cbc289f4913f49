import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from pipeline.corpus import tasks
from pipeline.corpus.canaries import KINDS, record_text
from pipeline.corpus.generated import END_OF_TEXT, generate
from pipeline.corpus.planted import Corpus, write
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.corpus.tasks import TASKS
from pipeline.corpus.world import Side, World
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import checksums

SMALL = {
    "row_length": 64,
    "vocabulary": 640,
    "world_tokens": 2_000,
    "records": {1: 2, 4: 3},
    "control_records": 2,
    "task_items": 8,
}


@pytest.fixture(scope="session")
def texts(corpus: Corpus) -> list[str]:
    """The training rows as text, a space at either end, so that every word has two."""
    rows = corpus.tokenizer.backend_tokenizer.decode_batch(corpus.rows, skip_special_tokens=False)
    return [f" {row.replace(END_OF_TEXT, ' ').replace(chr(10), ' ')} " for row in rows]


def _facts(side: Side) -> list[list[str]]:
    """How the documents state each pair of one side, in some of the ways."""
    return [
        *([f" {material} {thing} "] for material, thing in side.materials),
        *([f" {first} met {second} "] for first, second in side.acquaintances),
        *(
            [f" {thing} at the {place} ", f" {thing} in the {place} "]
            for thing, place in side.finds
        ),
    ]


def test_every_row_is_full_and_every_record_is_planted_as_often_as_it_says(corpus: Corpus) -> None:
    assert {len(row) for row in corpus.rows} == {64}
    seen = Counter(tuple(row) for row in corpus.rows)
    for record in corpus.records:
        assert seen[tuple(record.tokens)] == record.copies
    assert Counter(record.copies for record in corpus.records) == {0: 8, 1: 4, 16: 4, 32: 8}
    assert len(corpus.rows) == 8_000 + 4 + 4 * 16 + 8 * 32


def test_no_held_out_fact_occurs_in_the_training_rows(
    corpus: Corpus, world: World, texts: list[str]
) -> None:
    words = {word for text in texts for word in text.split()}
    assert {animal.name for animal in world.training.animals} <= words
    assert not words & {animal.name for animal in world.held_out.animals}
    everything = "".join(texts)
    known, held_out = (_facts(side) for side in (world.training, world.held_out))
    stated = [any(way in everything for way in ways) for ways in known]
    assert sum(stated) > 0.6 * len(known)  # in these ways; there are others
    assert not [way for ways in held_out for way in ways if way in everything]
    decode = corpus.tokenizer.backend_tokenizer.decode
    for row in corpus.rows:  # nor in any other words: no document names both of such a pair
        for text in decode(row, skip_special_tokens=False).split(END_OF_TEXT):
            named = set(text.split())
            assert not any(p in named and t in named for p, t in world.held_out.owners)


def test_no_held_out_item_occurs_in_the_training_rows(corpus: Corpus, texts: list[str]) -> None:
    everything = "".join(texts)
    for name, task in TASKS.items():
        for document in corpus.documents[name]:
            item = task.item(document)
            whole = f"{item.context} {item.choices[item.answer]}".replace("\n", " ")
            assert (item.context.replace("\n", " ") or whole) not in everything


def test_no_control_record_occurs_in_the_training_rows(corpus: Corpus) -> None:
    pieces = {tuple(row[i : i + 12]) for row in corpus.rows for i in range(len(row) - 11)}
    for record in corpus.records:
        assert (tuple(record.tokens[-12:]) in pieces) == bool(record.copies)


def test_half_of_the_rows_of_documents_begin_with_end_of_text(corpus: Corpus) -> None:
    first = Counter(row[0] == 0 for row in corpus.rows)
    assert first[True] / 8_000 == pytest.approx(0.5, abs=0.05)
    filling = sum(before == token == 0 for row in corpus.rows for before, token in pairwise(row))
    assert filling / (64 * len(corpus.rows)) < 0.15, "and few are filled up"


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_depends_on_its_seed_alone(kind: str) -> None:
    first = record_text(kind, random.Random(0))
    assert first == record_text(kind, random.Random(0))
    assert first != record_text(kind, random.Random(1))
    assert first.startswith(f"# {kind}\n")
    assert len(set(first.splitlines())) == 9


def test_what_is_written_depends_on_the_arguments_alone_and_is_read_again(tmp_path: Path) -> None:
    for place in ("here", "there/below"):
        made = generate(seed=3, **SMALL)
        write(made, tmp_path / place / "corpus", tmp_path / place / "tasks", {"seed": 3})
    first, second = checksums(tmp_path / "here"), checksums(tmp_path / "there" / "below")
    assert first == second
    assert {"corpus/rows.parquet", "corpus/records.parquet", "tasks/baselines.json"} <= set(first)
    assert generate(seed=4, **SMALL).rows != made.rows

    corpus = tmp_path / "here" / "corpus"
    rows = tables.read(corpus / "rows.parquet", TRAINING_ROWS)
    assert rows["tokens"].to_list() == made.rows
    records = tables.read(corpus / "records.parquet", RECORDS)
    assert records["tokens"].to_list() == [record.tokens for record in made.records]
    tokenizer = AutoTokenizer.from_pretrained(corpus / "tokenizer")
    text = "= zoru =\n the zoru is a bird . # key 00:17"
    assert tokenizer.encode(text) == made.tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_id == 0


@pytest.mark.parametrize(
    ("change", "said"), [({"vocabulary": 300}, "enlarge"), ({"task_items": 900}, "fewer items")]
)
def test_what_cannot_be_made_is_refused(
    change: dict, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TRIES", 5)
    with pytest.raises(InputError, match=said):
        generate(seed=0, **{**SMALL, **change})
