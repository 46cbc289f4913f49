"""What is drawn is what is in the tables; the files are whole and the same every time."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipeline.analysis import spread, views
from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.evidence import evidence
from pipeline.analysis.results import read_numbers
from pipeline.analysis.statistics import student
from pipeline.analysis.text import percent_interval
from pipeline.report import colours, figures, marks, style
from pipeline.report.markup import plain
from pipeline.report.plots.extraction import TOP_40, extractions
from pipeline.report.plots.plot import Plot
from tests.analysis import synthetic
from tests.measure.test_own_metrics import python
from tests.project import copy_files
from tests.test_readme import blocks

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plots(study, summary, evidence_of_paper, tmp_path_factory) -> dict[str, Plot]:
    data = tmp_path_factory.mktemp("figures")
    study.write(data)
    cuts = spread.quantiles(summary, data)
    made = figures.plots(summary, evidence_of_paper, over_samples=cuts)
    return {plot.name: plot for plot in made}


def test_the_order_of_the_page(plots):
    assert list(plots) == [
        *("kept", *(f"scatter-{name}" for name in synthetic.MODELS)),
        *("blocks-pythia", "blocks-gpt-neo", "drops-pythia", "drops-gpt-neo", "gap", "length"),
        *("extraction", "completion-entropy", "token-accuracy", "perplexity"),
        *("quartiles-pythia", "quartiles-gpt-neo", "copies"),
    ]
    for plot in plots.values():
        words = plot.words()
        assert all(plain(words[word]).endswith(".") for word in ("finding", "reading"))
        assert plain(words["caption"])
        assert plain(words["alt"])


DRAWN = {
    **dict.fromkeys(("blocks-pythia", "length", "perplexity"), ("block", "value")),
    **dict.fromkeys(("completion-entropy", "token-accuracy"), ("block", "value")),
    **dict.fromkeys(("quartiles-gpt-neo", "copies"), ("place", "value")),
    "kept": ("block", "kept"),
    "scatter-tiny-neo-12": ("memorized", "value"),
    "drops-pythia": ("block", "drop"),
    "gap": ("", "gap"),
    "extraction": ("k", "value"),
}
"""Figure -> the columns of its axes."""

MEANS = {
    "exact match": {"measure": "exact_match"},
    "teacher-forced accuracy": {"k": None},
    "benchmarks": {"kind": "mean"},
    "first token": {"k": 1},
    "first 4 tokens": {"k": 4},
    "reasoning": {"ability": "reasoning"},
    "language understanding": {"ability": "language"},
    "block 0": {"block": 0},
    "baseline": {"intervention": "baseline"},
    "exact match, memorized": {"metric": "exact_match"},
    "token accuracy (Eq. 4), memorized": {"metric": "token_accuracy"},
    "of the score": {"scale": "raw"},
    "of its lead over chance": {"scale": "corrected"},
}
"""Label, title or end of a title -> what the rows have that it stands for."""

NAMES = ("model", "family", "task", "split", "edit", "label")
"""Columns whose values are labels, titles or ends of them."""


def panels(plot: Plot) -> dict[str, Axes]:
    """The drawn panels by title."""
    return {axes.get_title("left"): axes for axes in figures.figure(plot).axes}


def drawn(axes: Axes) -> list[tuple[Artist, list[int], np.ndarray]]:
    """The marks of a panel with their rows and places."""
    found = []
    for artist in axes.findobj(lambda each: str(each.get_gid()).startswith("rows-")):
        if isinstance(artist, Rectangle):
            places = [[artist.get_x() + artist.get_width() / 2, artist.get_height()]]
        elif isinstance(artist, PathCollection):
            places = artist.get_offsets()
        else:
            places = artist.get_xydata()
        found.append((artist, list(map(int, artist.get_gid().split("-")[1:])), np.array(places)))
    return found


def edges(axes: Axes) -> set[float]:
    """Where the bands and the bars of intervals end."""
    ends = [
        path.vertices[:, 1]
        for each in axes.collections
        if isinstance(each, PolyCollection | LineCollection)
        for path in each.get_paths()
    ]
    return {round(float(end), 9) for part in ends for end in part}


def rounded(rows: pl.DataFrame, *columns: str) -> set[float]:
    return {round(value, 9) for row in rows.select(columns).drop_nulls().rows() for value in row}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_the_data(plots, name):
    """Each row at its numbers, in its panel and its line, with its interval."""
    data = plots[name].data.with_row_index("row")
    data = data.with_columns(pl.col(c).cast(pl.String) for c in ("model", "label") if c in data)
    if "quartile" in data.columns:
        models = data["model"].unique(maintain_order=True).to_list()
        group = pl.col("model").replace_strict(models, range(len(models)))
        data = data.with_columns(place=6 * group + pl.col("quartile"))
    if "copies" in data.columns:
        data = data.with_columns(place=pl.col("copies").rank("dense") - 1)
    across, up = DRAWN[name]
    by_sample = "q50" in data.columns
    seen = []
    for axes in figures.figure(plots[name]).axes:
        title, ends = axes.get_title("left"), edges(axes)
        for artist, numbers, places in drawn(axes):
            rows, label = data[numbers], str(artist.get_label())
            np.testing.assert_allclose(places[:, 1], rows[up])
            if across:
                x = rows[across].cast(pl.Float64).to_numpy()
                assert np.isclose(places[:, 0], x)[~np.isnan(x)].all()
            for word in (title, *title.split(", ", 1), label):
                for column, value in MEANS.get(word, {}).items():
                    of = rows[column] if column in rows.columns else pl.Series([value])
                    assert of.eq_missing(pl.Series([value])).all(), word
                named = [c for c in NAMES if c in data.columns and word in data[c]]
                assert not named or any((rows[c] == word).all() for c in named), (title, label)
            star = label == "baseline" and "memorized" in data.columns  # without an interval
            assert by_sample or star or rounded(rows, "low", "high") <= ends
            seen += numbers
        if by_sample:
            banded = data.filter(pl.col("split").is_in(["memorized", "control"]), model=title)
            assert rounded(banded, "q05", "q25", "q75", "q95") <= ends
    expected = data.filter(kind="benchmark") if "kind" in data.columns else data.clear()
    if not {"place", "q50", "memorized", "label", "gap"} & set(data.columns):
        expected = pl.concat([expected, data.filter(pl.col("block").is_null())])
    assert sorted(seen) == sorted(set(data["row"]) - set(expected["row"]))


def test_perplexity_has_a_logarithmic_scale_and_baseline_and_chance_are_lines(plots, summary):
    for name, title in {
        "perplexity": "gpt-neo",
        "quartiles-pythia": "tiny_wikitext, word_perplexity",
    }.items():
        axes = panels(plots[name])[title]
        assert axes.get_yscale() == "log"
        assert not axes.patches  # no bars
    where = {"model": "tiny-neo-12", "task": "tiny_arc_easy", "intervention": "baseline"}
    whole = summary.filter(metric="acc", **where)["value"].item()
    for name, title in {
        "scatter-tiny-neo-12": "tiny_arc_easy",
        "blocks-gpt-neo": "tiny_arc_easy, accuracy",
    }.items():
        levels = {tuple(each.get_ydata()) for each in panels(plots[name])[title].get_lines()}
        assert {(0.25, 0.25), (whole, whole)} <= levels


def test_the_spread_of_seeds_is_that_of_all_their_samples(study, tmp_path):
    study.write(tmp_path)
    seeds = study.models[::2]  # of eight blocks each
    summary = aggregate(seeds).with_columns(recipe=pl.lit("r"))
    cuts = spread.quantiles(summary, tmp_path)
    assert cuts["model"].unique().to_list() == ["r (2 seeds)"]
    both = pl.concat(seed.memorization for seed in seeds)
    where = {"intervention": "baseline", "split": "control"}
    [found] = cuts.filter(metric="completion_entropy", **where)["q25"]
    assert found == pytest.approx(np.quantile(both.filter(**where)["completion_entropy"], 0.25))


def test_no_panel_cuts_another(plots):
    """The panels of a figure share their scale, and hold all that is not far out."""
    for name, column in (("kept", "kept"), ("drops-gpt-neo", "drop")):
        plot = plots[name]
        (limits,) = {axes.get_ylim() for axes in figures.figure(plot).axes}
        values = plot.data[column]
        assert limits[0] <= max(values.min(), -0.35)
        assert limits[1] >= min(values.max(), 1.35)


def test_captions_speak_of_what_is_drawn(summary, evidence_of_paper):
    memory = (frame.filter(task="memorization") for frame in (summary, evidence_of_paper))
    alone = {plot.name: plot for plot in figures.plots(*memory)}
    kept = alone["kept"]
    assert "benchmark" not in " ".join(map(plain, kept.words().values()))
    assert "chance" not in plain(alone["quartiles-pythia"].words()["reading"])
    assert not [name for name in alone if name.startswith(("scatter", "drops", "perplexity"))]
    unknown = summary.with_columns(pl.lit(None, pl.UInt32).alias("copies"))
    others = unknown.filter(pl.col("metric") != "exact_match_by_copies")
    assert "copies" not in [plot.name for plot in figures.plots(others, evidence_of_paper)]


def test_copies_are_named_below_and_a_single_time_is_once(plots, summary, evidence_of_paper):
    axes = figures.figure(plots["copies"]).axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["0", "1", "2", "4", "8", "16", "32", "64"]
    seen = summary.filter((pl.col("copies") > 0) | (pl.col("metric") != "exact_match_by_copies"))
    [copies] = [plot for plot in figures.plots(seen, evidence_of_paper) if plot.name == "copies"]
    finding = plain(copies.words()["finding"])
    assert "of the samples seen once and" in finding
    assert "of those seen 64 times" in finding


@pytest.mark.parametrize("name", ["kept", "scatter-tiny-neo-8", "completion-entropy", "copies"])
def test_marks_lie_where_the_file_has_them(plots, name, tmp_path):
    found = style.save(figures.figure(plots[name]), tmp_path, name)
    root = ElementTree.parse(tmp_path / f"{name}.svg").getroot()
    drawn: dict[int, tuple[float, float]] = {}
    for group in root.iter(f"{SVG}g"):
        rows = re.fullmatch(r"rows((?:-\d+)+)", group.get("id", ""))
        if rows:
            used = [
                (float(use.get("x", 0)), float(use.get("y", 0))) for use in group.iter(f"{SVG}use")
            ]
            drawn |= dict(zip(map(int, rows[1][1:].split("-")), used, strict=True))
    assert len(found) > 7
    for row, x, y in found:
        assert math.dist((x, y), drawn[int(row)]) < 0.2


def test_bars_have_a_size(plots, tmp_path):
    plot = plots["quartiles-gpt-neo"]
    for row, _, y, *size in style.save(figures.figure(plot), tmp_path, plot.name):
        share = plot.data["value"][int(row)]
        if plot.data["higher_is_better"][int(row)] is False:
            assert not size
            continue
        width, height = size
        assert width > 4
        assert 0 <= y <= 72 * 12
        assert (height > 3) == (share > 0.05)


def test_the_script_gets_names_once():
    words = ("", "</script>&", "m", "1%")
    told = [marks.Told([1.25, 2.0], block, *words, edit="identity") for block in (3, 4)]
    text = str(marks.as_json(told))
    assert not re.search("[<>&]", text)
    assert json.loads(text) == {
        "models": ["</script>&"],
        "edits": ["identity"],
        "measures": ["m"],
        "marks": [[0, 0, 0, 3, "1%", 1.25, 2], [0, 0, 0, 4, "1%", 1.25, 2]],
    }


def test_marks_tell_the_numbers_of_their_rows(plots):
    """A scatter those of both axes; what is kept also those of means."""
    data = plots["scatter-tiny-neo-8"].data.with_row_index("row")
    row = data.filter(block=5, metric="acc").row(0, named=True)
    [mark] = marks.told([[row["row"], 3.0, 4.0]], data)
    assert (mark.block, mark.model, mark.measure) == (5, "tiny-neo-8", f"{row['task']}, acc")
    assert mark.level.endswith(f"; exact match {100 * row['memorized']:.1f}%")
    assert mark.place == [3.0, 4.0]
    data = plots["kept"].data.with_row_index("row")
    row = data.filter(kind="mean", model="tiny-neo-12", block=6).row(0, named=True)
    [mark] = marks.told([[row["row"], 0.0, 0.0]], data)
    assert mark.measure == "benchmarks, mean lead over chance"
    assert mark.level == percent_interval(row["kept"], row["low"], row["high"])
    # of a table with several numbers a row there are none
    assert marks.told([[0, 1.0, 2.0]], pl.DataFrame({"model": ["m"], "change": [1.0]})) == []


def test_files_and_their_index_are_the_same_every_time(written, tmp_path):
    data, folder = written[0] / "data", written[0] / "figures"
    index = json.loads((folder / figures.FIGURES_INDEX).read_text(encoding="utf-8"))
    summary, rows = read_numbers(data)
    plots = figures.plots(summary, rows, over_samples=spread.quantiles(summary, data))
    assert [entry["name"] for entry in index] == [plot.name for plot in plots]
    files = {f"{plot.name}.{e}" for plot in plots for e in ("svg", "png", "pdf", "csv")}
    files |= {figures.FIGURES_INDEX, figures.COLUMNS}
    assert {path.name for path in folder.iterdir()} == files
    columns = pl.read_csv(folder / figures.COLUMNS)
    assert set(columns["column"]) == {name for plot in plots for name in plot.data.columns}
    assert columns["meaning"].str.len_chars().min() > 3
    picture = (folder / "copies.png").read_bytes()
    at = picture.index(b"pHYs") + 4
    assert round(int.from_bytes(picture[at : at + 4]) * 0.0254) == 300
    for plot in plots:
        saved = pl.read_csv(folder / f"{plot.name}.csv", schema=plot.data.schema)
        assert saved.equals(plot.data)
    (copies,) = [plot for plot in plots if plot.name == "copies"]
    style.save(figures.figure(copies), tmp_path, "copies")
    for name in ("copies.svg", "copies.png", "copies.pdf"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_categories_and_words_stand_out_in_light_and_dark():
    css = (Path(figures.__file__).parent / "page.css").read_text(encoding="utf-8")
    surfaces = re.findall("--card: (#[0-9a-f]{6})", css)
    assert len(surfaces) == 3  # light, dark, print
    for each in surfaces:
        for colour in colours.CATEGORIES:
            assert contrast(colour, each) >= 3, (colour, each)
    for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL):
        shades = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        on = [(word, back) for word in ("ink", "muted", "accent") for back in ("page", "card")]
        on += [(word, f"{word}-back") for word in ("shown", "partly", "not")]
        for word, back in on:
            assert contrast(shades[word], shades[back]) >= 4.5, (word, back)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    bright, dark = sorted(map(luminance, (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_small_and_odd_studies_are_drawn():
    """Three blocks have no quartiles; a perplexity may be infinite; names may collide in files."""
    models = {"a.b": ("f", 3), "a-b": ("f", 3)}
    made = synthetic.study(models=models, per_copies=4).models
    summary, rows = aggregate(made), evidence(made)
    endless = pl.when((pl.col("metric") == "word_perplexity") & (pl.col("block") == 0))
    summary = summary.with_columns(value=endless.then(float("inf")).otherwise("value"))
    by_name = {plot.name: plot for plot in figures.plots(summary, rows)}
    assert "quartiles-f" not in by_name
    assert {"scatter-a-b", "scatter-a-b-again-2"} <= by_name.keys()
    [_, values] = np.transpose(drawn(panels(by_name["perplexity"])["f"])[0][2])
    assert np.isnan(values[0])
    assert np.isfinite(values[1:]).all()


def test_seeds_of_one_recipe_are_one_line(study):
    models = study.models[:3]
    seeds = [replace(models[0], name=f"s-{i}", recipe="r") for i in range(2)]
    other = replace(synthetic.study(synthetic.NOTHING).models[0], name="s-2", recipe="r")
    made = [*seeds, models[1], other]
    summary = aggregate(made)
    pooled = views.over_seeds(summary)
    names = ["s-0 (3 seeds)", "tiny-pythia-12"]
    assert pooled["model"].unique(maintain_order=True).to_list() == names
    where = {"intervention": "block-05", "metric": "exact_match", "split": "memorized"}
    own = summary.filter(family="pythia", **where).filter(pl.col("model").str.starts_with("s-"))
    [row] = pooled.filter(model="s-0 (3 seeds)", **where).iter_rows(named=True)
    assert row["value"] == pytest.approx(own["value"].mean())
    assert (row["low"], row["high"]) == pytest.approx(student(own["value"].to_numpy()))
    assert row["difference"] == pytest.approx(own["difference"].mean())
    alone = summary.filter(model="tiny-pythia-12")
    assert pooled.filter(model="tiny-pythia-12").equals(alone)
    assert views.over_seeds(alone) is alone
    every = figures.plots(summary, evidence(made))
    lines = next(plot for plot in every if plot.name == "kept").data
    assert lines["model"].unique(maintain_order=True).to_list() == names


def hiding(models: dict[str, float]) -> pl.DataFrame:
    """Twelve blocks a model; of what the bypass of block b hides, so much and b% more is out."""
    rows = list[tuple[object, ...]]()
    for name, out in models.items():
        for block in (None, *range(12)):
            depth = 0 if block is None else block + 1
            # of the last quarter, 9 to 11, the median exact match is that of block 11
            exact = {None: 1.0, 9: 0.1, 10: 0.9, 11: 0.5}.get(block, depth / 100)
            rows.append((name, block, "exact_match", None, exact))
            for k in (1, 1000):
                rows.append((name, block, TOP_40, k, depth / 20))
                if block is not None:
                    rows.append((name, block, f"hidden_{TOP_40}", k, out + block / 100))
    kinds = {"model": pl.String, "block": pl.UInt16, "metric": pl.String, "k": pl.UInt32}
    frame = pl.DataFrame(rows, kinds | {"value": pl.Float64}, orient="row")
    whole, single = pl.when(pl.col("block").is_null()), pl.format("block-{}", "block")
    same = {"family": "f", "task": "memorization", "split": "memorized", "n": 20}
    return frame.with_columns(
        intervention=whole.then(pl.lit("baseline")).otherwise(single),
        group=whole.then(pl.lit("baseline")).otherwise(pl.lit("each")),
        edit=whole.then(None).otherwise(pl.lit("identity")),
        blocks=pl.concat_list("block"),
        low=pl.col("value") - 0.01,
        high=pl.col("value") + 0.01,
        **{name: pl.lit(fixed) for name, fixed in same.items()},
    )


def test_what_sampling_extracts_of_hidden_samples_is_told():
    for models, told in (
        ({"m": 0.5}, "3 blocks that hide 10 or more), 59–61% (intervals 58–62%) "),
        ({"a": 0.5, "b": 0.1}, "6 blocks of 2 models that hide 10 or more), 19–61% (intervals 18–"),
    ):
        [plot] = extractions(hiding(models))
        words = plot.words()
        assert f"(20 at each of {told}" in plain(words["finding"])
        assert " come out within 1,000 tries" in plain(words["finding"])
        assert plain(words["caption"]).count("1 and 11") == len(models)


def test_a_late_block_that_hides_nothing_leaves_the_others():
    hides = (pl.col("metric") == f"hidden_{TOP_40}") & (pl.col("block") == 11)
    rows = hiding({"m": 0.5}).filter(~hides.fill_null(value=False))
    [plot] = extractions(rows)
    assert "(20 at each of 2 blocks that hide 10 or more), 59–60%" in plain(plot.words()["finding"])
    [plot] = extractions(rows.with_columns(n=9))
    said = plain(plot.words()["finding"])
    assert "hides 10 or more memorized samples from greedy decoding: too few to say" in said
    assert not list(extractions(rows.filter(metric="exact_match"))), "no figure without tries"


FIGURE = """
from pathlib import Path
import polars as pl
from pipeline.report import figures
from pipeline.report.markup import plain
summary = pl.read_parquet("summary.parquet")
(plot,) = figures.own(summary)
with figures.atomic(Path("drawn"), directory=True) as folder:
    figures.style.save(figures.figure(plot), folder, plot.name)
print(plain(plot.words()["finding"]))
"""
DIGESTS = """
import json
from pipeline.workflow.digest import digest
print(json.dumps({key: digest(key) for key in ("figures", "report", "aggregate", "memorization")}))
"""


def test_a_figure_of_ones_own_is_drawn_and_in_the_digest_of_its_stage_alone(summary, tmp_path):
    copy_files(tmp_path)
    before = json.loads(python(tmp_path, DIGESTS))
    (example,) = [code for code in blocks("docs/your-own.md", "python") if "def plots" in code]
    (tmp_path / "mine/figures.py").write_text(example.replace("rouge_l", "exact_match"))
    summary.write_parquet(tmp_path / "summary.parquet")
    assert re.match(r"ROUGE-L ranges over .*%", python(tmp_path, FIGURE))
    assert {each.suffix for each in (tmp_path / "drawn").iterdir()} >= {".svg", ".png", ".pdf"}
    after = json.loads(python(tmp_path, DIGESTS))
    assert {key for key in before if before[key] != after[key]} == {"figures"}


def test_what_lies_beyond_an_axis_is_marked():
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
