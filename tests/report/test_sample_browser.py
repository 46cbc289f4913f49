"""Which samples the page shows, as text or as token ids."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from tokenizers import Tokenizer, decoders, models

from pipeline.measure import metrics
from pipeline.report import browser, page
from pipeline.workflow import tables
from tests.analysis import synthetic

BLOCKS = {"m": ["block-00", "block-01", "block-02"]}
NAMES = [("tiny-neo-8", "gpt-neo")]
TRAINED_HERE = {"name": "tiny-neo-8", "origin": {"recipe": {}}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A study of one model, whose broken continuations have a wrong last token."""
    synthetic.study(models={"tiny-neo-8": ("gpt-neo", 8)}, per_copies=16).write(tmp_path)
    path = tmp_path / "memorization" / "tiny-neo-8.parquet"
    frame = tables.read(path, metrics.MEMORIZATION)
    right = pl.col("continuation")
    last = pl.lit([640], dtype=pl.List(pl.UInt32))
    wrong = pl.concat_list(right.list.head(right.list.len() - 1), last)
    broken = pl.when("exact_match").then(right).otherwise(wrong)
    tables.write(frame.with_columns(broken.alias("continuation")), path, metrics.MEMORIZATION, {})
    return tmp_path


def _tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({f" w{i}": i for i in range(641)}, " w0"))
    tokenizer.decoder = decoders.Fuse()
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def test_the_most_and_the_least_broken_are_chosen(data: Path) -> None:
    [family], missing = browser.read_browser(data, NAMES, [])
    assert missing == []
    assert [sample.split for sample in family.samples] == ["memorized"] * 12 + ["control"] * 4
    shares = [n / of for sample in family.samples[:12] for n, of in sample.broken.values()]
    assert shares[:8] == sorted(shares[:8], reverse=True)
    assert shares[8:] == sorted(shares[8:])
    assert max(shares[8:]) <= min(shares[:8])
    frame = tables.read(data / "memorization" / "tiny-neo-8.parquet", metrics.MEMORIZATION)
    for sample in family.samples[:12]:
        rows = frame.filter(sample_id=sample.sample_id)
        assert rows.filter(intervention="baseline")["exact_match"].item()
        assert list(sample.broken.values()) == [((~rows["exact_match"]).sum(), rows.height - 1)]
    groups = tables.read(data / "samples" / "gpt-neo.parquet", tables.SAMPLES)
    chosen = groups.filter(pl.col("sample_id").is_in([s.sample_id for s in family.samples]))
    assert chosen["suffix_group"].is_unique().all()


def test_the_worst_block_leaves_the_fewest_right(data: Path) -> None:
    [family], _ = browser.read_browser(data, NAMES, [])
    sample = family.samples[0]
    suffix = list(sample.suffix)
    each = {"baseline": suffix, "block-00": suffix, "quartile-1": [0] * len(suffix)}
    each |= {"block-01": [*suffix[:-1], 640], "block-02": [640, *suffix[1:-1], 640]}
    made = browser.Sample(
        1, "memorized", 4, [1], suffix, (1, 16), {"m": (1, 4)}, {"m": each}, BLOCKS
    )
    assert made.worst("m") == "block-02"
    kept = browser.Family("f", [made]).data()["samples"]["1"]["continuations"][0]
    assert kept["block-00"] == {}
    assert kept["block-02"] == {"0": 640, "15": 640}


def test_only_what_was_decoded_is_chosen(data: Path) -> None:
    path = data / "memorization" / "tiny-neo-8.parquet"
    frame = tables.read(path, metrics.MEMORIZATION)
    chosen = pl.col("sample_id") % 5 == 0
    known = [*metrics.unknown(chosen), pl.when(chosen).then(pl.col("continuation"))]
    tables.write(frame.with_columns(known, decoded=chosen), path, metrics.MEMORIZATION, {})
    [family], missing = browser.read_browser(data, NAMES, [])
    assert missing == []
    assert {sample.sample_id % 5 for sample in family.samples} == {0}
    assert family.data()["blocks"] == [[f"block-0{block}" for block in range(8)]]
    tables.write(frame.with_columns(decoded=False), path, metrics.MEMORIZATION, {})
    assert browser.read_browser(data, NAMES, []) == ([], [])


def test_real_text_is_shown_only_where_asked_for(data: Path, summary: pl.DataFrame) -> None:
    _tokenizer(data / "checkpoints" / "tiny-neo-8" / "tokenizer.json")
    manifests = [{"name": "tiny-neo-8", "origin": {"repo": "nobody/nothing", "commit": "0" * 40}}]
    [ids], _ = browser.read_browser(data, NAMES, manifests)
    assert not ids.words
    assert not ids.private
    html = _render(summary, ids)
    assert "Shown as token ids: memorized text can be private, and text was not asked for." in html
    assert " w640" not in html
    [text], _ = browser.read_browser(data, NAMES, manifests, show_text=True)
    assert text.private
    assert text.words[640] == " w640"
    html = _render(summary, text)
    assert "This is text of real training data." in html
    assert "<mark> w640</mark>" in html


def test_generated_text_is_shown_without_asking(data: Path, summary: pl.DataFrame) -> None:
    _tokenizer(data / "checkpoints" / "tiny-neo-8" / "tokenizer.json")
    [family], _ = browser.read_browser(data, NAMES, [TRAINED_HERE])
    assert family.words
    assert not family.private
    assert 'class="note"' not in _render(summary, family)


def test_without_a_tokenizer_ids_are_shown(data: Path) -> None:
    [family], _ = browser.read_browser(data, NAMES, [{"name": "tiny-neo-8"}], show_text=True)
    assert family.why_ids == "no tokenizer.json of its models is on this machine"


def _render(summary: pl.DataFrame, family: browser.Family) -> str:
    return page.render("s", summary, [], [], samples=[family])


def test_long_samples_are_cut(
    data: Path, summary: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "PREFIX_TOKENS", 5)
    monkeypatch.setattr(browser, "SUFFIX_TOKENS", 3)
    monkeypatch.setattr(browser, "BUDGET", 1000)
    [family], _ = browser.read_browser(data, NAMES, [])
    samples = tables.read(data / "samples" / "gpt-neo.parquet", tables.SAMPLES)
    assert len(family.samples) == 2  # of 36 × 13 characters each
    sample = family.samples[0]
    tokens = samples.filter(sample_id=sample.sample_id)["tokens"].item().to_list()
    assert sample.prefix == tokens[43:48]
    assert sample.suffix == tokens[48:51]
    assert sample.lengths == (48, 16)
    assert {len(each) for each in sample.continuations["tiny-neo-8"].values()} == {3}
    assert "prefix, 48 tokens, the last 5 of them" in _render(summary, family)


def test_places_are_counted_from_one() -> None:
    assert browser.places([]) == ""
    assert browser.places([0, 2, 3, 4, 9]) == "1, 3–5, 10"


def test_no_text_ends_the_script_element() -> None:
    sample = browser.Sample(1, "memorized", None, [7], [7], (1, 1), {}, {"</script>": {}})
    family = browser.Family("f", [sample], {7: "</script>\u2028\ud800&\n"})
    text = browser.as_json([family])
    assert not re.search("[<>&\u2028\ud800]", text)
    [loaded] = json.loads(text)
    assert loaded["words"]["7"] == "</script>\\u2028\\ud800&↵\n"
    assert loaded["models"] == ["</script>"]
