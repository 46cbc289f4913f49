"""Samples, what models wrote and a user's texts on the page, as text or as token ids."""

import base64
import math
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tokenizers import Tokenizer, decoders, models

from pipeline.measure import metrics, schemas
from pipeline.measure.metrics import METRICS
from pipeline.report import browser, choosing, facts, overview, page, texts
from pipeline.report.generations import read_generations
from pipeline.report.markup import plain
from pipeline.report.numbers import unclaimed
from pipeline.samples.frame import samples_frame
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables
from tests.analysis import synthetic
from tests.report.test_page import Outline

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


def test_samples_that_tell_something_are_chosen(data):
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


def test_a_sample_of_each_kind_is_shown(data):
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


def test_a_row_holds_the_first_error_and_what_follows():
    suffix = [1, 2, 3, 4]
    for tokens, row, states in (
        (suffix, [-0.0123, 3.14], ["right"] * 4),
        ([1, 9, 9, 4], [-0.0123, 3.14, 1, 9, 9, 4], browser.SIGNS),
    ):
        assert browser.row(suffix, tokens, -0.01234, 3.14159) == row
        assert list(browser.states(suffix, row)) == list(zip(states, tokens, strict=True))


def test_the_script_gets_a_row_for_each_intervention():
    rows = {"m": {"baseline": [None, None], "block-01": [-2.0, 0.0, 1, 5, 9]}}
    each = {"m": {"block-01": browser.packed([[-0.26, -99], [1, 70_000], [0, 1]])}}
    sample = browser.Sample(4, "why", "memorized", 2, [1], [7, 8, 9], (1, 3), {}, rows, each)
    family = browser.Family("f", [sample], {"m": ["baseline", "block-00", "block-01"]})
    [made] = family.data()["samples"]
    assert made["rows"] == [[[None, None], None, [-2.0, 0.0, 1, 5, 9]]]
    assert made["each"][0][:2] == ["", ""]
    assert list(base64.b64decode(made["each"][0][2])) == [3, 1, 0, 0, 255, 255, 255, 10]


def test_single_tokens_are_read_where_they_were_looked_at(data):
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


def test_only_what_was_decoded_is_chosen(data):
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


def test_real_text_is_shown_only_where_asked_for_and_generated_text_always(data, summary):
    name = "tiny-neo-8"
    [bare], _, _ = choosing.read_browser(data, NAMES, [{"name": name}], show_text=True)
    assert bare.why_ids == "no tokenizer.json of its models is on this machine"
    tokenizer = Tokenizer(models.WordLevel({f" w{i}": i for i in range(641)}, " w0"))
    tokenizer.decoder = decoders.Fuse()
    (data / "checkpoints" / name).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(data / "checkpoints" / name / "tokenizer.json"))
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


def test_long_samples_are_cut(data, summary, monkeypatch):
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


def test_tables_without_numbers_are_named_as_missing(tmp_path):
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


def test_written_text_is_shown_where_it_may_be(tmp_path):
    """Where asked for, or of a generated world; real text is ids."""
    text = [("555 0199", ""), ("555 ", "nine"), ("555 0199", "")]
    ids = [("7 8 9", ""), ("7", "5 9"), ("7 8 9", "")]
    frame = pl.DataFrame(
        {
            "intervention": ["baseline", "block-00", "block-01"],
            "prompt_id": [0, 0, 0],
            "decoding": ["greedy"] * 3,
            "prompt": ["my number is"] * 3,
            "prompt_tokens": [[1, 2]] * 3,
            "continuation": [[7, 8, 9], [7, 5, 9], [7, 8, 9]],
            "text": ["555 0199", "555 nine", "555 0199"],
            "first_difference": [None, 1, None],
            "first_difference_character": [None, 4, None],
            "baseline_perplexity": [1.5, 20.0, 1.5],
            "distinct_bigrams": [1.0, 0.5, 1.0],
        },
        schema=tables.dtypes(schemas.GENERATIONS),
    )
    tables.write(frame, tmp_path / "generations" / "m.parquet", schemas.GENERATIONS, {})
    (tmp_path / "corpus/tokenizer").mkdir(parents=True)  # of other models of the study
    (tmp_path / "corpus/tokenizer/tokenizer.json").write_text("{}")
    for origin, show_text, lines in (
        ({"repo": "a/b"}, False, ids),
        (None, True, text),
        ({"recipe": {}}, False, text),
    ):
        manifests = [{"name": "m", "origin": origin}, {"name": "without-a-table"}]
        [made] = read_generations(tmp_path, manifests, show_text=show_text)
        assert made.ids == (lines is ids)
        assert [(line["same"], line["other"]) for line in made.lines] == lines
        names = [line["intervention"] for line in made.lines]
        assert names == ["baseline", "block-00", "block-01"]


MANIFEST = {"name": "mine", "family": "audit", "parameters": 9}


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """Three texts of a file, of which the model recites the second."""
    tokens = np.arange(18).reshape(3, 6)
    samples = samples_frame(tokens, 2, ["memorized"] * 3, [None] * 3).with_columns(
        row=pl.Series([0, 1, 3], dtype=pl.UInt32), line=pl.Series([2, 5, 9], dtype=pl.UInt32)
    )
    made_by = {"family": {"samples": {"path": "poems.csv"}}}
    tables.write(samples, tmp_path / "samples/audit.parquet", SAMPLES, made_by)
    rows = {
        "sample_id": pl.Series([0, 1, 2] * 2, dtype=pl.UInt32),
        "intervention": ["baseline"] * 3 + ["block-01"] * 3,
        "exact_match": [False, True, False] + [False] * 3,
        "correct_length": [1, 4, 0] + [0] * 3,
        "suffix_log_prob": [-100.0, -0.5, -2000.0] * 2,
        "continuation": [[2, 0, 0, 0], [8, 9, 10, 11], None] * 2,
    }
    (tmp_path / "memorization").mkdir()
    pl.DataFrame(rows).write_parquet(tmp_path / "memorization/mine.parquet")
    return tmp_path


def of_one(summary: pl.DataFrame, value: float) -> pl.DataFrame:
    """The memorization of one model on its samples, with this exact match everywhere."""
    exact = pl.col("metric").str.starts_with("exact_match")
    first = summary["model"][0]
    return summary.filter(model=first, task="memorization", split="memorized").with_columns(
        model=pl.lit("mine"),
        family=pl.lit("audit"),
        recipe=pl.lit("mine"),
        value=pl.when(exact).then(value).otherwise("value"),
        low=pl.when(exact).then(max(0.0, value - 0.1)).otherwise("low"),
        high=pl.when(exact).then(value + 0.1).otherwise("high"),
        n=pl.when(exact).then(3).otherwise("n").cast(pl.UInt32),
    )


def test_every_text_is_listed_with_its_line_and_parts(audited, summary):
    """And beside them what the model writes, where text is shown."""
    [listed] = texts.read_texts(audited, MANIFEST, of_one(summary, 1 / 3))
    assert listed.file == "poems.csv"
    assert listed.heading == ["line", "sample", "recited", "first tokens right", "probability"]
    assert listed.rows == [
        ["5", "1", "yes", "4 of 4", "60.7%"],
        ["2", "0", "no", "1 of 4", "3.7e-44"],
        ["9", "2", "no", "0 of 4", f"{10 ** (-2000 / math.log(10) + 869):.1f}e-869"],
    ]
    assert listed.frame.columns[:3] == ["row", "line", "sample_id"]
    assert listed.frame["row"].to_list() == [2, 1, 4], "counted from 1"
    (audited / "checkpoints/mine").mkdir(parents=True)
    words = models.WordLevel({str(i): i for i in range(18)}, unk_token="0")
    Tokenizer(words).save(str(audited / "checkpoints/mine/tokenizer.json"))
    [listed] = texts.read_texts(audited, MANIFEST, of_one(summary, 1 / 3), show_text=True)
    assert listed.heading[-3:] == ["prefix", "suffix", "continuation"]
    assert [row[-3:] for row in listed.rows] == [
        ["6 7", "8 9 10 11", "8 9 10 11"],
        ["0 1", "2 3 4 5", "2 0 0 0"],
        ["12 13", "14 15 16 17", ""],
    ]


def test_samples_of_another_source_are_no_texts_of_the_user(audited, summary):
    assert texts.are_given(audited, ["audit"])
    samples = tables.read(audited / "samples/audit.parquet", SAMPLES)
    labelled = samples.with_columns(split=pl.Series(["memorized", "control", "control"]))
    for family, made in (("labelled", labelled), ("other", samples.drop("row", "line"))):
        tables.write(made, audited / f"samples/{family}.parquet", SAMPLES, {})
        assert not texts.are_given(audited, [family])
        assert not texts.are_given(audited, ["audit", family])
    assert texts.read_texts(audited, {**MANIFEST, "family": "other"}, summary) == []


@pytest.mark.parametrize("recited", [0, 1])
def test_the_page_of_an_audit_says_what_is_there(audited, summary, recited):
    own = of_one(summary, recited / 3)
    path = audited / "memorization/mine.parquet"
    if not recited:
        pl.read_parquet(path).with_columns(exact_match=False).write_parquet(path)
    listed = texts.read_texts(audited, MANIFEST, own)
    html = page.render(page.Results("audit-mine", own, [MANIFEST], texts=listed, given=True))
    outline = Outline(html)
    said = Outline(re.sub(r"(?s)<(style|script).*?</\1>", "", html)).text
    assert outline.open == []
    assert f"mine recites {recited} of 3 of your texts:" in said
    assert ("Where nothing is recited" in said) == (not recited)
    assert ("The baseline recites nothing" in said) == (not recited)
    assert "3 samples per model" in said
    assert "poems.csv" in said
    for absent in ("memorized", "control", "0% to 0%", "not measured", "acc_norm"):
        assert re.findall(f".{{0,60}}{absent}.{{0,30}}", said) == []
    assert {"claims", "crosswalk"}.isdisjoint(str(a.get("id")) for _, a in outline.tags)


def test_samples_are_not_called_memorized():
    for before, after in {
        "exact match, memorized": "exact match",
        "share right, memorized samples": "share right, samples",
        "of memorized tokens": "of tokens",
        "hides no memorized sample": "hides no sample",
        "memorized": "samples",
        "completion entropy": "completion entropy",
    }.items():
        assert unclaimed(before) == after


def test_every_metric_can_be_looked_at(summary):
    """On the page of numbers, and in the heatmap: the usual ones, or as the reader chooses."""
    measured = set(summary.filter(task="memorization")["metric"])
    named = [m.name for m in METRICS if m.name in measured]
    assert "rouge_l" in named
    heading, rows = facts.metrics(summary)
    assert heading[:3] == ["metric", "meaning", "unit"]
    meanings = {m.name: m.meaning for m in METRICS if m.name in named}
    assert {row[0]: row[1] for row in rows} == meanings
    kept = dict.fromkeys(("model", "group", "edit", "measure"), pl.String)
    kept |= {"block": pl.UInt16, "kept": pl.Float64}
    nothing_kept = pl.DataFrame(schema=kept)
    [first, *_] = overview.heatmaps(summary, nothing_kept)
    others = [name for name in named if name not in overview._MEMORY]
    assert len(first["others"]) == len(others)
    assert set(first["others"]) <= set(first["heading"])
    assert any(label.startswith("suffix log prob, nats") for label in first["others"])

    of_one_name = summary.with_columns(pl.col("task").replace("tiny_piqa", "exact_match"))
    [first, *_] = overview.heatmaps(of_one_name, nothing_kept)
    assert {"exact match", "exact match (task)"} <= set(first["heading"])
