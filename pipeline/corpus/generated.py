"""The corpus of a study that needs no network: training rows, records, tokenizer, tasks.

A training row is as long as a record and holds either one record or whole documents of the
generated world, each followed by the end-of-text token. Half of the rows of documents begin with
that token, because the benchmarks score some texts after it and some after nothing. End-of-text
also fills what no document fits into: every end-of-text token after another one is filling, and
training ignores it.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import islice

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipeline.corpus import canaries
from pipeline.corpus.planted import Corpus, Record
from pipeline.corpus.tasks import TASKS, Item, held_out_animals, make_documents
from pipeline.corpus.world import Side, document, make_world
from pipeline.workflow.errors import bad_input

END_OF_TEXT = "<eos>"
TOKENIZER_DOCUMENTS = 6_000
"""How many documents the tokenizer is fitted to; the text beyond is of the same kinds."""
LOOKAHEAD = 32
"""How many documents wait to fill the rest of a row."""


def generate(
    *,
    seed: int,
    row_length: int,
    vocabulary: int,
    world_tokens: int,
    records: Mapping[int, int],
    control_records: int,
    task_items: int,
) -> Corpus:
    """Generate a world, what is planted in it, and what is held out of it.

    The arguments are the fields of `pipeline.corpus.schema.Corpus`; the tokens of the world are a
    lower bound, and an item of a task takes up to 63 of a row.

    Raises:
        InputError: the documents or the items of the tasks do not fit into a row.
    """
    rng = random.Random(f"corpus {seed}")  # noqa: S311 - reproducible, not secret
    world = make_world(seed, held_out_animals(task_items))
    tokenizer = _fit_tokenizer(world.training, vocabulary, rng)
    [end] = tokenizer.encode(END_OF_TEXT).ids  # 0, the first that the trainer gives away

    probe = [len(ids) for ids in islice(_encoded(world.training, tokenizer, rng), 1_000)]
    if sorted(probe)[len(probe) // 2] + 2 > row_length:
        raise bad_input(
            "corpus: vocabulary and row_length",
            f"rows of {row_length} tokens, and half of the documents are longer",
            "rows into which most documents fit",
            "enlarge the vocabulary or the rows",
        )
    drawn = _draw_records(tokenizer, row_length, {**records, 0: control_records}, rng)
    rows = list(_pack(_encoded(world.training, tokenizer, rng), row_length, world_tokens, end, rng))
    rows += [record.tokens for record in drawn for _ in range(record.copies or 0)]
    rng.shuffle(rows)

    def fits(item: Item) -> bool:
        longest = max(len(tokenizer.encode(f"{item.context} {c}").ids) for c in item.choices)
        return longest < row_length  # one place is left for end-of-text before the item

    held_out = world.held_out
    wanted = dict.fromkeys(TASKS, task_items) | {"tiny_wikitext": len(held_out.animals)}
    documents = make_documents(TASKS, wanted, seed, held_out, fits=fits)
    whole = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    )
    return Corpus(rows, drawn, whole, documents, TASKS)


def _fit_tokenizer(side: Side, vocabulary: int, rng: random.Random) -> Tokenizer:
    """A byte-level BPE, as both families have, fitted to documents and records of its own."""
    texts = [document(side, rng) for _ in range(TOKENIZER_DOCUMENTS)]
    texts += [canaries.record_text(kind, rng) for kind in canaries.KINDS for _ in range(80)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _draw_records(
    tokenizer: Tokenizer, length: int, counts: Mapping[int, int], rng: random.Random
) -> list[Record]:
    """As many records as `counts` says for each number of copies, most copies first."""
    kinds = tuple(canaries.KINDS)
    drawn: list[Record] = []
    for copies, count in sorted(counts.items(), reverse=True):
        for index in range(count):
            kind = kinds[index % len(kinds)]
            tokens: list[int] = []
            while len(tokens) < length:  # a text of eight lines is long enough, nearly always
                tokens = tokenizer.encode(canaries.record_text(kind, rng)).ids[:length]
            drawn.append(Record(kind, copies, tokens))
    return drawn


def _encoded(side: Side, tokenizer: Tokenizer, rng: random.Random) -> Iterator[list[int]]:
    """Endless documents, token ids, encoded in batches, which is faster."""
    while True:
        for encoding in tokenizer.encode_batch([document(side, rng) for _ in range(1_000)]):
            yield list(encoding.ids)


def _pack(
    documents: Iterator[list[int]], length: int, tokens: int, end: int, rng: random.Random
) -> Iterator[list[int]]:
    """Rows of whole documents, until they hold at least `tokens` tokens."""
    waiting: list[list[int]] = []
    for _ in range(-(-tokens // length)):
        row = [end] if rng.random() < 0.5 else []
        while True:
            while len(waiting) < LOOKAHEAD:
                text = next(documents)
                if len(text) + 2 <= length:
                    waiting.append(text)
            room = length - len(row) - 1
            fitting = [text for text in waiting if len(text) <= room]
            if not fitting:
                break
            # a row begins with the one that waited longest, so that none waits forever
            chosen = fitting[0] if len(row) <= 1 else max(fitting, key=len)
            waiting.remove(chosen)
            row += [*chosen, end]
        yield row + [end] * (length - len(row))
