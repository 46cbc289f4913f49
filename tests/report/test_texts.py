"""A user's texts: which are recited, how likely each is, and what the page then says of them."""

import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from pipeline.measure.metrics import METRICS
from pipeline.report import facts, overview, page, style, texts
from pipeline.report.numbers import unclaimed
from pipeline.samples.frame import samples_frame
from pipeline.samples.schemas import SAMPLES
from pipeline.workflow import tables
from tests.report.test_page import Outline

MANIFEST = {"name": "mine", "family": "audit", "parameters": 9}
LOG_PROBS = [-100.0, -0.5, -2000.0]


@pytest.fixture
def data(tmp_path: Path) -> Path:
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
        "suffix_log_prob": LOG_PROBS * 2,
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


def test_every_text_is_listed_with_its_line_and_parts(data: Path, summary: pl.DataFrame) -> None:
    """And beside them what the model writes, where text is shown."""
    [listed] = texts.read_texts(data, MANIFEST, of_one(summary, 1 / 3))
    assert listed.file == "poems.csv"
    assert listed.heading == ["line", "sample", "recited", "first tokens right", "probability"]
    assert listed.rows == [
        ["5", "1", "yes", "4 of 4", "60.7%"],
        ["2", "0", "no", "1 of 4", "3.7e-44"],
        ["9", "2", "no", "0 of 4", f"{10 ** (-2000 / math.log(10) + 869):.1f}e-869"],
    ]
    assert listed.frame.columns[:3] == ["row", "line", "sample_id"]
    assert listed.frame["row"].to_list() == [2, 1, 4], "counted from 1"
    (data / "checkpoints/mine").mkdir(parents=True)
    words = WordLevel({str(i): i for i in range(18)}, unk_token="0")
    Tokenizer(words).save(str(data / "checkpoints/mine/tokenizer.json"))
    [listed] = texts.read_texts(data, MANIFEST, of_one(summary, 1 / 3), show_text=True)
    assert listed.heading[-3:] == ["prefix", "suffix", "continuation"]
    assert [row[-3:] for row in listed.rows] == [
        ["6 7", "8 9 10 11", "8 9 10 11"],
        ["0 1", "2 3 4 5", "2 0 0 0"],
        ["12 13", "14 15 16 17", ""],
    ]


def test_samples_of_another_source_are_no_texts_of_the_user(
    data: Path, summary: pl.DataFrame
) -> None:
    assert texts.are_given(data, ["audit"])
    samples = tables.read(data / "samples/audit.parquet", SAMPLES)
    labelled = samples.with_columns(split=pl.Series(["memorized", "control", "control"]))
    for family, made in (("labelled", labelled), ("other", samples.drop("row", "line"))):
        tables.write(made, data / f"samples/{family}.parquet", SAMPLES, {})
        assert not texts.are_given(data, [family])
        assert not texts.are_given(data, ["audit", family])
    assert texts.read_texts(data, {**MANIFEST, "family": "other"}, summary) == []


@pytest.mark.parametrize("recited", [0, 1])
def test_the_page_of_an_audit_says_what_is_there(
    data: Path, summary: pl.DataFrame, recited: int
) -> None:
    own = of_one(summary, recited / 3)
    path = data / "memorization/mine.parquet"
    if not recited:
        pl.read_parquet(path).with_columns(exact_match=False).write_parquet(path)
    listed = texts.read_texts(data, MANIFEST, own)
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


def test_samples_are_not_called_memorized() -> None:
    for before, after in {
        "exact match, memorized": "exact match",
        "share right, memorized samples": "share right, samples",
        "of memorized tokens": "of tokens",
        "hides no memorized sample": "hides no sample",
        "memorized": "samples",
        "completion entropy": "completion entropy",
    }.items():
        assert unclaimed(before) == after


def test_every_metric_can_be_looked_at(summary: pl.DataFrame) -> None:
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
    [first, *_] = overview.heatmaps(summary, pl.DataFrame(schema=kept))
    others = [name for name in named if name not in overview._MEMORY]
    assert len(first["others"]) == len(others)
    assert set(first["others"]) <= set(first["heading"])
    assert any(label.startswith("suffix log prob, nats") for label in first["others"])


def test_what_lies_beyond_an_axis_is_marked() -> None:
    figure = Figure()
    axes = figure.subplots()
    data = pl.DataFrame({"row": [0, 1, 2], "block": [0, 1, 2], "value": [0.5, -0.53, 2.0]})
    rows = data.with_columns(low="value", high="value", model=pl.lit("one"))
    style.lines(axes, rows, hollow=None)
    axes.scatter([3.0, 4.0], [0.2, 9.0], color="red")
    before = len(axes.lines)
    style.bound(axes, -0.35, 1.35)
    marks = axes.lines[before:]
    found = [(m.get_marker(), *map(float, m.get_xydata()[0]), m.get_gid()) for m in marks]
    assert found == [
        ("v", 1.0, -0.35, "rows-1"),
        ("^", 2.0, 1.35, "rows-2"),
        ("^", 4.0, 1.35, None),
    ]
    assert not any(m.get_clip_on() for m in marks)
