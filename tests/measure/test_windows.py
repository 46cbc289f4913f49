"""Every window of a document: against a plain loop, and what follows from the windows."""

import copy
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from tokenizers.processors import ByteLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TopKLogitsWarper

from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.measure import schemas
from pipeline.measure.passages import KNOWN, recall, runs
from pipeline.measure.sharded import Running
from pipeline.measure.windows import Document, document, measure, recite
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from pipeline.workflow.shards import open_shards
from tests import own
from tests.families import CONTEXT, FAMILIES, VOCABULARY
from tests.oracle import plain

P, S = 9, 5
EDITS = (BASELINE, Intervention("block-02", {2: "identity"}))


def text_of(length, seed=0, name="book", vocabulary=VOCABULARY):
    """Random tokens, each of two characters."""
    tokens = torch.randint(vocabulary, (length,), generator=torch.manual_seed(seed)).numpy()
    ends = np.stack([np.arange(length) * 2, np.arange(length) * 2 + 2], 1)
    return Document(name, tokens, ends)


def plainly(model, tokens, length):
    """Log p of the last `length` tokens, in full and top-40, from the stock model's logits."""
    with torch.inference_mode():
        logits = model(torch.tensor(tokens)[None]).logits[0, -length - 1 : -1].float()
    top = TopKLogitsWarper(top_k=40)(None, logits)
    at = torch.arange(length), torch.tensor(tokens[-length:])
    return [float(each.double().log_softmax(-1)[at].sum()) for each in (logits, top)]


@pytest.mark.parametrize("family", ["gpt_neox", "gpt_neo", "llama"])
def test_both_readings_equal_a_plain_loop_over_windows(family):
    torch.manual_seed(0)
    model = FAMILIES[family]().eval()
    book, note = text_of(520), text_of(40, seed=1, name="note")
    made = measure(model, [book, note], P, S, EDITS, stride=4, exact=60)
    assert made.schema == tables.dtypes(schemas.WINDOWS)
    for v, edit in enumerate(EDITS):
        rows = made.filter(intervention=edit.name)
        rolling = rows.filter(reading="rolling")
        assert rolling["start"].to_list() == [*range(0, 507, 4), *range(0, 27, 4)]
        assert rolling["context"].min() == P
        assert rolling["context"].max() == P + 8  # the most that the stride allows up to 2P
        exact = rows.filter(reading="exact")
        assert exact.height == 60
        assert set(exact["context"]) == {P}
        of = {"book": book, "note": note}
        with plain.bypassed(model, edit):
            for row in pl.concat([rolling, exact]).iter_rows(named=True):
                tokens, suffix = of[row["document"]].tokens, row["start"] + P
                read = tokens[suffix - row["context"] : suffix + S]
                full, top = plainly(model, read, S)
                assert row["log_prob"] == pytest.approx(full, abs=1e-4)
                assert row["log_prob_top_40"] == pytest.approx(top, abs=1e-4)
                assert row["first_character"] == 2 * suffix
                assert row["end_character"] == 2 * suffix + 2 * S
        unedited = made.filter(intervention="baseline")["log_prob"]
        assert v == 0 or (rows["log_prob"] != unedited).any()
    assert (made["log_prob_top_40"] == -np.inf).any()


@pytest.mark.parametrize("stride", [1, 4, P, P + 3, 50])
@pytest.mark.parametrize("length", [P + S, P + S + 1, 2 * P + S, 61])
def test_every_stride_reads_the_same_windows_up_to_the_last(neox, stride, length):
    documents = [text_of(length, vocabulary=61), text_of(0)]
    made = measure(neox, documents, P, S, stride=stride, exact=1000).filter(intervention="baseline")
    exact, rolling = (made.filter(reading=name) for name in ("exact", "rolling"))
    starts = [*range(0, length - P - S + 1, stride)]
    assert exact["start"].to_list() == rolling["start"].to_list() == starts
    assert length - stride < starts[-1] + P + S <= length
    same = rolling.filter(pl.col("context") == P).join(exact, on="start")
    assert same.height
    np.testing.assert_allclose(same["log_prob"], same["log_prob_right"], atol=1e-4)


def test_a_context_with_little_room_shortens_the_chunks():
    model = FAMILIES["llama"]().eval()
    made = measure(model, [text_of(200)], CONTEXT - 12, 6, stride=3, exact=0)
    assert made["context"].max() + 6 <= CONTEXT + 1
    assert made["context"].max() > CONTEXT - 12
    assert made["start"].to_list() == [*range(0, 200 - CONTEXT + 6 + 1, 3)]
    with pytest.raises(InputError, match="the model's context"):
        measure(model, [text_of(200)], CONTEXT, 6)
    with pytest.raises(InputError, match=r"the tokens of the documents\n +got: +token 9999"):
        measure(model, [text_of(200)._replace(tokens=np.full(200, 9999))], 6, 6)


@pytest.mark.parametrize("trim", [False, True])
def test_tokens_lie_at_the_characters_whose_bytes_they_are(tmp_path, trim):
    """Tokens that cut a character have all of it; no space is left out, as GPT-NeoX's does."""
    tokenizer = own.write_tokenizer(tmp_path)
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=trim)
    text = "ab  cd\r\n\n é日 😀😀<eos>  e\u0301 \t x " + "long" * 3000
    made = document("a", text, tokenizer)
    of_byte = [i for i, letter in enumerate(text) for _ in letter.encode()]
    at = 0
    for token, (first, end) in zip(made.tokens.tolist(), made.ends.tolist(), strict=True):
        name = tokenizer.convert_ids_to_tokens(token)
        size = 5 if name == "<eos>" else len(name)  # text of special tokens is read as such
        inside = of_byte[at : at + size]
        assert first == inside[0]
        assert end >= inside[-1] + (not text[inside[-1]].isspace())
        at += size
    assert at == len(text.encode())


def test_means_are_over_the_documents_tokens_and_not_over_padding(neox):
    """What token 0 is like changes nothing where no document has it."""
    other = copy.deepcopy(neox)
    weight = other.get_output_embeddings().weight.detach().clone()
    other.get_output_embeddings().weight = torch.nn.Parameter(weight)
    other.get_input_embeddings().weight.data[0] += 100
    book = text_of(P + S)._replace(tokens=np.arange(1, P + S + 1))
    edits = [BASELINE, Intervention("mean", {1: "mean"})]
    each = [measure(one, [book], P, S, edits, exact=0)["log_prob"] for one in (neox, other)]
    np.testing.assert_array_equal(*each)


def test_a_reference_text_may_have_a_documents_name(neox):
    book = text_of(100)._replace(tokens=np.arange(100) % 61)
    windows = measure(neox, [book, book._replace(reference=True)], P, S)
    alone = windows.filter(~pl.col("reference"))
    surest = pl.when(reference=True, start=80).then(0.0).otherwise("log_prob")
    words = SimpleNamespace(decode=str)
    seen = recite(neox, [book], windows.with_columns(log_prob=surest), [BASELINE], words)
    assert seen.equals(recite(neox, [book], alone, [BASELINE], words))


def test_a_document_without_a_window_is_left_out(model):
    short = text_of(P + S - 1)
    made = measure(model, [short], P, S)
    assert made.is_empty()
    assert recite(model, [short], made, [BASELINE], None).is_empty()


def test_a_killed_reading_resumes_and_gives_the_same_table(model, tmp_path):
    book = text_of(150, vocabulary=61)
    whole = measure(model, [book], P, S, EDITS)
    folder, at = tmp_path / "a" / "windows" / "m", {"code": "1"}

    class Killed(BaseException):
        pass

    def kill(done, total):
        if done >= total // 2:
            raise Killed

    with pytest.raises(Killed), open_shards(folder, 1e-6, at) as shards:
        measure(model, [book], P, S, EDITS, running=Running(progress=kill, shards=shards))
    with open_shards(folder, 1e-6, at) as shards:
        again = measure(model, [book], P, S, EDITS, running=Running(shards=shards))
        assert 0 < shards.reused < shards.total
    np.testing.assert_allclose(again["log_prob"], whole["log_prob"], atol=1e-5)
    first, second = (table.drop("log_prob", "log_prob_top_40") for table in (whole, again))
    assert first.equals(second)


def test_logits_that_are_not_finite_are_named(model):
    broken = copy.deepcopy(model)
    weight = broken.get_output_embeddings().weight.detach().clone()  # of the head alone
    weight[0] = torch.nan
    broken.get_output_embeddings().weight = torch.nn.Parameter(weight)
    with pytest.raises(InputError, match="baseline, chunk 0"):
        measure(broken, [text_of(40)._replace(tokens=np.arange(40))], P, S)


# ------------------------------------------------------------------ what follows from the windows


def test_runs_are_windows_whose_suffixes_touch():
    of = {"start": range(6, 46, 5), "log_prob_top_40": [-1, -9, -1, -1, -9, -9, -1, -9]}
    first = 2 * (pl.col("start") + 4)
    rows = pl.DataFrame(of).with_columns(prefix_length=4, first_character=first)
    lengths = (rows.with_columns(suffix_length=length) for length in (5, 10))
    end = pl.col("first_character") + 2 * pl.col("suffix_length")
    five, ten = (runs(each.with_columns(end_character=end)).rows() for each in lengths)
    # start, first and last character, tokens
    assert five == [(16, 40, 60, 10), (6, 20, 30, 5), (36, 80, 90, 5)]
    assert ten == [(6, 20, 70, 25), (36, 80, 100, 10)]
    assert runs(rows.head(0).with_columns(suffix_length=5, end_character=0)).is_empty()


def test_recall_forgives_a_changed_word_and_ignores_short_matches():
    true = list(range(100))
    assert recall(true, true) == 1
    assert recall([*true[:50], -1, *true[51:]], true) == 0.99
    assert recall([*true[:50], *true[51:]], true) == 0.99
    assert recall([*true[:30], *[-1] * 40, *true[70:85]], true) == 0.3
    assert recall([*true[:15], *[-1] * 30, *true[45:60]], true) == 0
    assert recall([*true[60:], *true[:60]], true) == 0.6


@pytest.fixture(scope="module")
def reciting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reciting")
    own.write_checkpoint(folder, steps=150, words=240)
    return folder


def test_planted_text_is_found_where_it_is(reciting):
    """A model that learned a text by heart, in rows of 32 tokens, and a document with two rows."""
    model = AutoModelForCausalLM.from_pretrained(reciting).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(reciting)
    learned = tokenizer(own.text(), add_special_tokens=False)["input_ids"]
    planted = [tokenizer.decode(learned[at : at + 32]) for at in (320, 640)]
    filler = own.text(words=300, seed=5)
    text = filler + planted[0] + filler + planted[1] + filler
    made = document("book", text, tokenizer)
    windows = measure(model, [made], 8, 8, EDITS, stride=2, exact=0)
    found = windows.filter(KNOWN, intervention="baseline")
    assert found.height
    for first, last in found.select("first_character", "end_character").iter_rows():
        assert any(text[first:last].strip() in each for each in planted)
    assert {text.find(each) < found["first_character"].max() for each in planted} == {True}
    recited = recite(model, [made], windows, EDITS, tokenizer).filter(intervention="baseline")
    seed = int(recited["start"][0])
    true = made.tokens[seed + 8 :]
    with torch.inference_mode():
        written = model.generate(
            torch.tensor(made.tokens[seed : seed + 8])[None],
            attention_mask=torch.ones(1, 8).long(),
            max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0,
        )[0, 8:]  # fmt: skip
    right = (written.numpy() == true[: len(written)]).cumprod().sum()
    assert right > 0
    assert recited["verbatim"][0] == right
    assert recited["text"][0].startswith(tokenizer.decode(true[:right]))
