"""The corpus of a study of a pretrained model: passages to be planted in it by fine-tuning.

A training row is one passage. Beside what is planted there are passages of the same kind that
never are, the control, and famous passages that the model has read elsewhere, nobody knows how
often.
"""

import itertools
import random
from collections.abc import Iterator, Mapping

from transformers import PreTrainedTokenizerFast

from pipeline.corpus.planted import Corpus, Record
from pipeline.corpus.tasks import Document, make_documents, tasks_of
from pipeline.corpus.words import FAMOUS, SAMPLED, WORDS
from pipeline.workflow.errors import bad_input

SHARED = 12
"""No two passages share this many tokens in a row, so none is learned from another's copies."""


def _story_cloze(rng: random.Random) -> Iterator[Document]:
    """Stories that end, without a full stop, in a word that they have named before."""
    for number, template in itertools.cycle(enumerate(WORDS["stories"])):
        a, b = rng.sample(WORDS["names"], 2)
        p, q = rng.sample(WORDS["spots"], 2)
        thing, day = rng.choice(WORDS["owned"]), rng.choice(WORDS["days"])
        text = template.format(a=a, b=b, p=p, q=q, x=thing, day=day)
        yield {"text": text, "category": f"template {number}"}


def _agreement(rng: random.Random) -> Iterator[Document]:
    """A subject, a noun of the other number after it half of the time, and a verb, which agrees."""
    while True:
        one, other = rng.sample(WORDS["nouns"], 2)
        plural = rng.random() < 0.5
        subject = f"The {one}{'s' * plural}"
        if rng.random() < 0.5:
            subject += f" {rng.choice(WORDS['between'])} the {other}{'s' * (not plural)}"
        yield {"text": subject, "choices": rng.choice(WORDS["agreeing"]), "label": int(plural)}


TASKS = tasks_of(_story_cloze, _agreement)


def stories(rng: random.Random) -> Iterator[str]:
    """Text like that of a task, which is not planted."""
    return (document["text"] for document in _story_cloze(rng))


def generate(
    tokenizer: PreTrainedTokenizerFast,
    *,
    seed: int,
    row_length: int,
    records: Mapping[int, int],
    control_records: int,
    task_items: int,
    kinds: int | None = None,
) -> Corpus:
    """Draw what is planted, what is not, and the items of the tasks.

    The tokenizer is the model's; the other arguments are the fields of
    `pipeline.corpus.schema.Corpus`. A row is a passage.

    Raises:
        InputError: there are not so many different passages of this length, or items.
    """
    rng = random.Random(f"passages {seed}")  # noqa: S311 - reproducible, not secret
    famous = [
        Record(passage.name, None, ids[:row_length])
        for passage in FAMOUS
        if len(ids := _encode(tokenizer, passage.text)) >= row_length
    ]
    counts = {**records, 0: control_records}
    copies = [n for n, count in sorted(counts.items(), reverse=True) for _ in range(count)]
    seen = {run for record in famous for run in _runs(record.tokens)}
    drawn: list[Record] = []
    for text in rng.sample(SAMPLED, len(SAMPLED)):
        ids = _encode(tokenizer, text)[:row_length]
        if len(drawn) == len(copies):
            break
        if len(ids) == row_length and not seen & (runs := _runs(ids)):
            seen |= runs
            kind = f"sampled-{len(drawn) % kinds + 1}" if kinds else "sampled"
            drawn.append(Record(kind, copies[len(drawn)], ids))
    if len(drawn) < len(copies):
        raise bad_input(
            "corpus: control_records, records and row_length",
            f"{len(drawn)} that are long enough and differ, of {len(SAMPLED)}",
            f"{len(copies)}",
            "ask for fewer, or for other lengths",
        )
    rows = [record.tokens for record in drawn for _ in range(record.copies or 0)]
    rng.shuffle(rows)
    documents = make_documents(TASKS, dict.fromkeys(TASKS, task_items), seed)
    return Corpus(rows, drawn + famous, tokenizer, documents, TASKS)


def _runs(ids: list[int]) -> set[tuple[int, ...]]:
    """All runs of `SHARED` tokens."""
    return {tuple(ids[i : i + SHARED]) for i in range(len(ids) - SHARED + 1)}


def _encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
