"""Which samples the page shows, as text or as token ids."""

import base64
import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from tokenizers import Tokenizer, decoders, models

from pipeline.measure import metrics, schemas
from pipeline.report import browser, choosing, marks, page
from pipeline.report.markup import plain
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables
from tests.analysis import synthetic

NAMES = [("tiny-neo-8", "gpt-neo")]
MODELS = {"tiny-neo-8": ("gpt-neo", 8)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A study of one model, whose broken continuations have a wrong last token."""
    synthetic.study(models=MODELS, per_copies=16).write(tmp_path)
    right = pl.col("continuation")
    last = pl.lit([640], dtype=pl.List(pl.UInt32))
    wrong = pl.concat_list(right.list.head(right.list.len() - 1), last)
    broken = pl.when("exact_match").then(right).otherwise(wrong)
    rewrite(tmp_path, memorization(tmp_path), continuation=broken)
    shutil.rmtree(tmp_path / "tokens")
    return tmp_path


def memorization(data: Path) -> pl.DataFrame:
    return tables.read(data / "memorization" / "tiny-neo-8.parquet", metrics.MEMORIZATION)


def rewrite(data: Path, frame: pl.DataFrame, *changes: pl.Expr, **more: object) -> None:
    """The table of memorization anew."""
    path = data / "memorization" / "tiny-neo-8.parquet"
    tables.write(frame.with_columns(changes, **more), path, metrics.MEMORIZATION, {})


def _tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({f" w{i}": i for i in range(641)}, " w0"))
    tokenizer.decoder = decoders.Fuse()
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def test_samples_that_tell_something_are_chosen(data: Path) -> None:
    [family], told, missing = choosing.read_browser(data, NAMES, [])
    assert missing == []
    why = [sample.why for sample in family.samples]
    assert why == ["most surviving", "most fragile", "control"]  # no broken one ends right
    frame = memorization(data)
    recited = frame.filter("exact_match", intervention="baseline", split="memorized")
    of_recited = frame.join(recited.select("sample_id"), on="sample_id", how="semi")
    edited = of_recited.filter(pl.col("intervention") != "baseline")
    shares = edited.group_by("sample_id").agg(share=(~pl.col("exact_match")).mean())
    of = dict(shares.iter_rows())
    surviving, fragile, _ = family.samples
    assert of[surviving.sample_id] == min(of.values())
    assert of[fragile.sample_id] == max(of.values())
    for sample in (surviving, fragile):
        [(n, rows)] = sample.broken.values()
        assert n / rows == of[sample.sample_id]
    [sentence] = map(plain, told)
    late = pl.col("intervention").is_in(["block-06", "block-07"])
    broken = of_recited.filter(late, ~pl.col("exact_match"))
    places = broken.group_by("intervention").agg(at=pl.median("correct_length") + 1)["at"]
    assert f"at token {places.min():g}" in sentence
    assert f"{places.max():g} (medians" in sentence
    again = sentence.split("block by block). ")[1]
    assert again.startswith("0.0% [0.0, ")  # the last token is the wrong one
    assert f"from {broken['sample_id'].n_unique()} samples" in again


def test_a_sample_of_each_kind_is_shown(data: Path) -> None:
    right = pl.col("continuation")
    turned = pl.concat_list(pl.lit([640], dtype=pl.List(pl.UInt32)), right.list.slice(1))
    last = pl.col("correct_length") == 15  # the fixture broke the last token alone
    mended = pl.when(~pl.col("exact_match") & last & (pl.col("sample_id") == 3)).then(turned)
    rewrite(data, memorization(data), continuation=mended.otherwise(right))
    samples = data / "samples" / "gpt-neo.parquet"
    known = tables.read(samples, SAMPLES)
    kinds = pl.when(pl.col("sample_id") % 2 == 0).then(pl.lit("even")).otherwise(pl.lit("odd"))
    tables.write(known.with_columns(kinds.alias("kind")), samples, SAMPLES, {})
    [family], _, _ = choosing.read_browser(data, NAMES, [])
    why = {sample.why: sample.sample_id for sample in family.samples}
    assert {"kind even", "kind odd"} <= set(why)
    assert why["kind even"] % 2 == 0
    assert why["kind odd"] % 2 == 1


def test_a_row_holds_the_first_error_and_what_follows() -> None:
    suffix = [1, 2, 3, 4]
    for tokens, row, states in (
        (suffix, [-0.0123, 3.14], ["right"] * 4),
        ([1, 9, 9, 4], [-0.0123, 3.14, 1, 9, 9, 4], browser.SIGNS),
    ):
        assert browser.row(suffix, tokens, -0.01234, 3.14159) == row
        assert list(browser.states(suffix, row)) == list(zip(states, tokens, strict=True))


def test_the_script_gets_a_row_for_each_intervention() -> None:
    rows = {"m": {"baseline": [None, None], "block-01": [-2.0, 0.0, 1, 5, 9]}}
    each = {"m": {"block-01": browser.packed([[-0.26, -99], [1, 70_000], [0, 1]])}}
    kind = (4, "why", "memorized", 2)
    sample = browser.Sample(*kind, [1], [7, 8, 9], (1, 3), {}, rows, each)
    family = browser.Family("f", [sample], {"m": ["baseline", "block-00", "block-01"]})
    [made] = family.data()["samples"]
    assert made["rows"] == [[[None, None], None, [-2.0, 0.0, 1, 5, 9]]]
    assert made["each"][0][:2] == ["", ""]
    assert list(base64.b64decode(made["each"][0][2])) == [3, 1, 0, 0, 255, 255, 255, 10]
    # no text ends the element of the script
    rows = {"</script>": {"x": [None, None]}}
    sample = browser.Sample(1, "why", "memorized", None, [7], [7], (1, 1), {}, rows)
    family = browser.Family("f", [sample], {}, {7: "</script>\u2028\ud800&\n"})
    text = marks.embedded([family.data()])
    assert not re.search("[<>&\u2028\ud800]", text)
    [loaded] = json.loads(text)
    assert loaded["words"]["7"] == "</script>\\u2028\\ud800&↵\n"
    assert loaded["models"] == ["</script>"]


def test_single_tokens_are_read_where_they_were_looked_at(data: Path) -> None:
    rows = memorization(data).filter(pl.col("sample_id") < 6).select("intervention", "sample_id")
    tokens = rows.join(pl.DataFrame({"position": range(16)}), how="cross").with_columns(
        log_prob=-pl.col("position") / 10,
        rank=pl.col("position") + 1,
        margin=pl.col("sample_id") / 10,
    )
    (data / "tokens").mkdir()
    tokens.reverse().write_parquet(data / "tokens" / "tiny-neo-8.parquet")
    [family], told, _ = choosing.read_browser(data, NAMES, [])
    assert "chosen from the 6 per model" in plain(told[-1])
    assert {sample.sample_id for sample in family.samples} <= set(range(6))
    sample = family.samples[0]
    packed = base64.b64decode(sample.each["tiny-neo-8"]["block-03"])
    assert list(packed) == [n for i in range(16) for n in (i, i + 1, 0, sample.sample_id)]
    assert family.data()["samples"][0]["each"]


def test_only_what_was_decoded_is_chosen(data: Path) -> None:
    frame = memorization(data)
    chosen = pl.col("sample_id") % 5 == 0
    known = [*metrics.unknown(chosen), pl.when(chosen).then(pl.col("continuation"))]
    rewrite(data, frame, *known, decoded=chosen)
    [family], _, missing = choosing.read_browser(data, NAMES, [])
    assert missing == []
    assert {sample.sample_id % 5 for sample in family.samples} == {0}
    assert [f"block-0{block}" for block in range(8)] == family.data()["interventions"][0][1:9]
    rewrite(data, frame, decoded=pl.lit(False))
    assert choosing.read_browser(data, NAMES, []) == ([], [], [])


def test_real_text_is_shown_only_where_asked_for_and_generated_text_always(
    data: Path, summary: pl.DataFrame
) -> None:
    name = "tiny-neo-8"
    [bare], _, _ = choosing.read_browser(data, NAMES, [{"name": name}], show_text=True)
    assert bare.why_ids == "no tokenizer.json of its models is on this machine"
    _tokenizer(data / "checkpoints" / name / "tokenizer.json")
    manifests = [{"name": name, "origin": {"repo": "nobody/nothing", "commit": "0" * 40}}]
    [ids], _, _ = choosing.read_browser(data, NAMES, manifests)
    assert not ids.words
    assert not ids.private
    html = _render(summary, ids)
    assert "Memorized text can be private, and text is turned off (report.show_text)." in html
    assert " w640" not in html
    [text], _, _ = choosing.read_browser(data, NAMES, manifests, show_text=True)
    assert text.private
    assert text.words[640] == " w640"
    html = _render(summary, text)
    assert "gpt-neo: this is text of real training data." in html
    assert re.search("[✗×]  w640</td>", html)
    trained_here = [{"name": name, "origin": {"recipe": {}}}]
    [generated], _, _ = choosing.read_browser(data, NAMES, trained_here)
    assert generated.words
    assert not generated.private
    assert 'class="note"' not in _render(summary, generated)


def _render(summary: pl.DataFrame, family: browser.Family) -> str:
    return page.render(page.Results("s", summary, samples=[family]))


def test_long_samples_are_cut(
    data: Path, summary: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "PREFIX_TOKENS", 5)
    monkeypatch.setattr(choosing, "SUFFIX_TOKENS", 3)
    monkeypatch.setattr(choosing, "BUDGET", 1000)
    [family], _, _ = choosing.read_browser(data, NAMES, [])
    samples = tables.read(data / "samples" / "gpt-neo.parquet", SAMPLES)
    assert len(family.samples) == 2  # of 36 × 13 characters each
    sample = family.samples[0]
    tokens = samples.filter(sample_id=sample.sample_id)["tokens"].item().to_list()
    assert sample.prefix == tokens[43:48]
    assert sample.suffix == tokens[48:51]
    assert sample.lengths == (48, 16)
    rows = sample.rows["tiny-neo-8"].values()
    assert {len(list(browser.states(sample.suffix, row))) for row in rows} == {3}
    assert "48</data> tokens, of which the last are" in _render(summary, family)
    assert family.data()["samples"][0]["cut"]


def test_tables_without_numbers_are_named_as_missing(tmp_path: Path) -> None:
    synthetic.study(models=MODELS, per_copies=16).write(tmp_path)
    path = tmp_path / "tokens" / "tiny-neo-8.parquet"
    nothing = pl.lit(float("nan"), pl.Float32).alias("margin")
    unknown = tables.read(path, schemas.TOKENS).with_columns(nothing)
    tables.write(unknown, path, schemas.TOKENS, {})
    _, _, missing = choosing.read_browser(tmp_path, NAMES, [])
    assert missing == [f"tiny-neo-8 has no continuations to show: {path} has numbers that are NaN."]
    samples = tmp_path / "samples" / "gpt-neo.parquet"
    tables.write(tables.read(samples, SAMPLES).clear(), samples, SAMPLES, {})
    _, _, missing = choosing.read_browser(tmp_path, NAMES, [])
    assert missing == ["The samples of gpt-neo cannot be shown: no sample"]
