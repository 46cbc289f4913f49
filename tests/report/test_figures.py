"""What is drawn is what is in the tables; the files are whole and the same every time."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

from pipeline.analysis import spread, views
from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.evidence import EVIDENCE, EVIDENCE_FILE, evidence
from pipeline.analysis.rows import SUMMARY
from pipeline.analysis.statistics import LEVEL, reach, student
from pipeline.measure.metrics import MEMORIZATION
from pipeline.report import colours, figures, style
from pipeline.report.markup import plain
from pipeline.report.plots.plot import Plot
from pipeline.workflow import tables
from tests.analysis import synthetic

WRITTEN = tuple[Path, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def plots(summary: pl.DataFrame, evidence_of_paper: pl.DataFrame) -> dict[str, Plot]:
    return {plot.name: plot for plot in figures.plots(summary, evidence_of_paper)}


def panels(plot: Plot) -> dict[str, Axes]:
    """The drawn panels by title."""
    return {axes.get_title("left"): axes for axes in figures.figure(plot).axes}


def line(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    """X and y of the line with this label in the legend."""
    (found,) = [each for each in axes.get_lines() if each.get_label() == label]
    return list(found.get_xdata()), list(found.get_ydata())


def blocks(summary: pl.DataFrame, **where: object) -> tuple[list[int], list[float]]:
    rows = summary.filter(pl.col("block").is_not_null(), **where).sort("block")
    return rows["block"].to_list(), rows["value"].to_list()


def test_the_order_of_the_page(plots: dict[str, Plot]) -> None:
    models = [f"scatter-{name}" for name in synthetic.MODELS]
    assert list(plots) == [
        "kept",
        *models,
        "blocks-pythia",
        "blocks-gpt-neo",
        "drops-pythia",
        "drops-gpt-neo",
        "gap",
        "length",
        "extraction",
        "completion-entropy",
        "token-accuracy",
        "perplexity",
        "quartiles-pythia",
        "quartiles-gpt-neo",
        "copies",
    ]
    for plot in plots.values():
        words = plot.words()
        assert all(plain(words[word]).endswith(".") for word in ("finding", "reading"))
        assert plain(words["caption"])
        assert plain(words["alt"])


def test_scatter(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    name = "tiny-neo-12"
    axes = panels(plots[f"scatter-{name}"])["tiny_arc_easy"]
    _, x = blocks(summary, model=name, metric="exact_match", split="memorized")
    _, y = blocks(summary, model=name, task="tiny_arc_easy", metric="acc")
    drawn = {
        points.get_label(): np.asarray(points.get_offsets())
        for points in axes.collections
        if isinstance(points, PathCollection)
    }
    np.testing.assert_allclose(drawn["block 0"], [[x[0], y[0]]])
    np.testing.assert_allclose(drawn["one block"], np.transpose([x[1:], y[1:]]))
    whole = summary.filter(model=name, intervention="baseline")
    star = [
        whole.filter(metric="exact_match", split="memorized")["value"][0],
        whole.filter(task="tiny_arc_easy")["value"][0],
    ]
    np.testing.assert_allclose(drawn["baseline"], [star])
    assert line(axes, "chance")[1] == [0.25, 0.25]


def test_blocks(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    drawn = panels(plots["blocks-pythia"])
    name = "tiny-pythia-12"
    assert line(drawn["tiny_piqa, accuracy"], name) == blocks(summary, model=name, task="tiny_piqa")
    assert line(drawn["exact match, memorized"], name) == blocks(
        summary, model=name, metric="exact_match", split="memorized"
    )


def test_lengths(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    axes = panels(plots["length"])["tiny-neo-8"]
    where = {"model": "tiny-neo-8", "split": "memorized"}
    assert line(axes, "first 4 tokens") == blocks(summary, metric="exact_match_at_k", k=4, **where)
    assert line(axes, "whole suffix") == blocks(summary, metric="exact_match", **where)
    assert line(axes, "teacher-forced accuracy") == blocks(
        summary, metric="teacher_forced_accuracy", **where
    )


@pytest.mark.parametrize("metric", ["completion_entropy", "token_accuracy"])
def test_spread_over_samples(study: synthetic.Study, tmp_path: Path, metric: str) -> None:
    """Lines are the summary's means; bands and bars at the baseline are quantiles over samples."""
    study.write(tmp_path)
    summary = aggregate(study.models)
    cuts = spread.quantiles(summary, tmp_path)
    plots = figures.plots(summary, evidence(study.models), over_samples=cuts)
    [plot] = [each for each in plots if each.name == metric.replace("_", "-")]
    axes = panels(plot)["tiny-pythia-8"]
    for split in ("memorized", "exposed", "control"):
        where = {"model": "tiny-pythia-8", "metric": metric, "split": split}
        assert line(axes, split) == blocks(summary, **where)
    table = tables.read(tmp_path / "memorization" / "tiny-pythia-8.parquet", MEMORIZATION)
    own = table.filter(split="memorized")
    values = [own.filter(intervention=f"block-{b:02d}")[metric].to_numpy() for b in range(8)]
    for i, (low, high) in enumerate(((0.05, 0.95), (0.25, 0.75))):
        expected = {round(float(np.quantile(v, q)), 9) for v in values for q in (low, high)}
        drawn = {round(float(y), 9) for y in axes.collections[i].get_paths()[0].vertices[:, 1]}
        assert drawn == expected
    bar = axes.collections[2].get_segments()[0][:, 1]
    whole = own.filter(intervention="baseline")[metric].to_numpy()
    np.testing.assert_allclose(bar, np.quantile(whole, [0.05, 0.95]))


def test_the_spread_of_seeds_is_that_of_all_their_samples(
    study: synthetic.Study, tmp_path: Path
) -> None:
    study.write(tmp_path)
    seeds = study.models[::2]  # of eight blocks each
    summary = aggregate(seeds).with_columns(recipe=pl.lit("r"))
    cuts = spread.quantiles(summary, tmp_path)
    assert cuts["model"].unique().to_list() == ["r (2 seeds)"]
    both = pl.concat(
        tables.read(tmp_path / "memorization" / f"{name}.parquet", MEMORIZATION)
        for name in (each.name for each in seeds)
    )
    where = {"intervention": "baseline", "split": "control"}
    [found] = cuts.filter(metric="completion_entropy", **where)["q25"]
    assert found == pytest.approx(np.quantile(both.filter(**where)["completion_entropy"], 0.25))


def test_perplexity(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    axes = panels(plots["perplexity"])["gpt-neo"]
    assert axes.get_yscale() == "log"
    assert line(axes, "tiny-neo-8") == blocks(summary, model="tiny-neo-8", task="tiny_wikitext")


def test_quartiles(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    axes = panels(plots["quartiles-gpt-neo"])["tiny_lambada_openai, accuracy"]
    heights = [bar.get_height() for bar in axes.patches]
    expected = [
        summary.filter(model=model, task="tiny_lambada_openai", intervention=intervention)["value"][
            0
        ]
        for intervention in ["baseline", *(f"quartile-{q}" for q in (1, 2, 3, 4))]
        for model in ("tiny-neo-8", "tiny-neo-12")
    ]
    assert heights == expected


def test_quartiles_of_a_perplexity_are_points(
    plots: dict[str, Plot], summary: pl.DataFrame
) -> None:
    axes = panels(plots["quartiles-pythia"])["tiny_wikitext, word_perplexity"]
    assert axes.get_yscale() == "log"
    assert not axes.patches
    drawn = sorted(y for points in axes.containers for y in points.lines[0].get_ydata())
    expected = summary.filter(pl.col("block").is_null(), family="pythia", task="tiny_wikitext")
    assert drawn == sorted(expected["value"])


def test_drops_raw_and_corrected(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    drawn = panels(plots["drops-pythia"])
    where = {"model": "tiny-pythia-12", "metric": "acc"}
    for title, floors in (
        ("of the score", {"tiny_arc_easy": 0, "tiny_piqa": 0}),
        ("of its lead over chance", {"tiny_arc_easy": 0.25, "tiny_piqa": 0.5}),
    ):
        lost = []
        for task, floor in floors.items():
            _, bypassed = blocks(summary, task=task, **where)
            whole = summary.filter(intervention="baseline", task=task, **where)["value"][0]
            lost.append((whole - np.array(bypassed)) / (whole - floor))
        _, shown = line(drawn[f"tiny-pythia-12, {title}"], "reasoning")
        np.testing.assert_allclose(shown, np.mean(lost, axis=0))


def test_no_panel_cuts_another(plots: dict[str, Plot]) -> None:
    """The panels of a figure share their scale, and hold all that is not far out."""
    for name, column in (("kept", "kept"), ("drops-gpt-neo", "drop")):
        plot = plots[name]
        (limits,) = {axes.get_ylim() for axes in figures.figure(plot).axes}
        values = plot.data[column]
        assert limits[0] <= max(values.min(), -0.35)
        assert limits[1] >= min(values.max(), 1.35)


def test_captions_speak_of_what_is_drawn(
    summary: pl.DataFrame, evidence_of_paper: pl.DataFrame
) -> None:
    memory = (frame.filter(task="memorization") for frame in (summary, evidence_of_paper))
    alone = {plot.name: plot for plot in figures.plots(*memory)}
    kept = alone["kept"]
    assert "benchmark" not in " ".join(map(plain, kept.words().values()))
    assert "chance" not in plain(alone["quartiles-pythia"].words()["reading"])
    assert not [name for name in alone if name.startswith(("scatter", "drops", "perplexity"))]
    unknown = summary.with_columns(pl.lit(None, pl.UInt32).alias("copies"))
    others = unknown.filter(pl.col("metric") != "exact_match_by_copies")
    assert "copies" not in [plot.name for plot in figures.plots(others, evidence_of_paper)]


def test_copies(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    axes = panels(plots["copies"])["pythia"]
    rows = summary.filter(
        model="tiny-pythia-8", metric="exact_match_by_copies", intervention="baseline"
    ).sort("copies")
    assert line(axes, "tiny-pythia-8") == (list(range(8)), rows["value"].to_list())
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "0", "1", "2", "4", "8", "16", "32", "64"
    ]  # fmt: skip


def test_samples_seen_a_single_time_are_seen_once(
    summary: pl.DataFrame, evidence_of_paper: pl.DataFrame
) -> None:
    seen = summary.filter((pl.col("copies") > 0) | (pl.col("metric") != "exact_match_by_copies"))
    [copies] = [plot for plot in figures.plots(seen, evidence_of_paper) if plot.name == "copies"]
    finding = plain(copies.words()["finding"])
    assert "of the samples seen once and" in finding
    assert "of those seen 64 times" in finding


def test_kept(plots: dict[str, Plot], summary: pl.DataFrame) -> None:
    axes = panels(plots["kept"])["tiny-pythia-8"]
    _, exact = blocks(summary, model="tiny-pythia-8", metric="exact_match", split="memorized")
    whole = summary.filter(
        model="tiny-pythia-8", metric="exact_match", split="memorized", intervention="baseline"
    )["value"][0]
    _, drawn = line(axes, "exact match")
    np.testing.assert_allclose(drawn, np.array(exact) / whole)
    leads = []
    for task, (chance, _) in synthetic.ACCURACIES.items():
        _, accuracy = blocks(summary, model="tiny-pythia-8", task=task)
        rows = summary.filter(model="tiny-pythia-8", task=task, intervention="baseline")
        leads.append((np.array(accuracy) - (chance or 0)) / (rows["value"][0] - (chance or 0)))
    _, mean = line(axes, "benchmarks")
    np.testing.assert_allclose(mean, np.mean(leads, axis=0))
    own = plots["kept"].data.filter(model="tiny-pythia-8", kind="mean")
    np.testing.assert_allclose(own["kept"], mean)
    assert "block-05" in own["intervention"].to_list()


def test_the_floor_of_single_tokens_is_what_controls_reach(
    plots: dict[str, Plot], summary: pl.DataFrame
) -> None:
    where = {"model": "tiny-neo-8", "metric": "teacher_forced_accuracy"}
    unmodified = summary.filter(intervention="baseline", **where)
    floor = unmodified.filter(split="control")["value"][0]
    whole = unmodified.filter(split="memorized")["value"][0]
    value = summary.filter(block=5, split="memorized", **where)["value"][0]
    kept = plots["kept"].data.filter(measure=where["metric"], model=where["model"], block=5)["kept"]
    assert floor > 0
    assert kept[0] == pytest.approx((value - floor) / (whole - floor))


def test_the_bands_of_kept_are_the_intervals_of_the_verdicts(
    plots: dict[str, Plot], evidence_of_paper: pl.DataFrame
) -> None:
    where = {"model": "tiny-neo-12", "metric": "exact_match", "block": 9}
    row = evidence_of_paper.filter(quantity="kept", **where).row(0, named=True)
    half = reach(row["stderr"], row["n_effective"], row["scale"], LEVEL)
    drawn = plots["kept"].data.filter(model="tiny-neo-12", measure="exact_match", block=9)
    assert drawn["low"][0] == pytest.approx(max(row["value"] - half, row["least"]))
    assert drawn["high"][0] == pytest.approx(min(row["value"] + half, row["most"]))


def test_files_and_their_index(written: WRITTEN) -> None:
    root, _ = written
    index = json.loads((root / "figures" / figures.INDEX).read_text(encoding="utf-8"))
    summary = tables.read(root / "data" / "summary.parquet", SUMMARY)
    rows = tables.read(root / "data" / EVIDENCE_FILE, EVIDENCE)
    plots = figures.plots(summary, rows, over_samples=spread.quantiles(summary, root / "data"))
    assert [entry["name"] for entry in index] == [plot.name for plot in plots]
    files = {f"{plot.name}.{e}" for plot in plots for e in ("svg", "png", "pdf", "csv")}
    files |= {figures.INDEX, figures.COLUMNS}
    assert {path.name for path in (root / "figures").iterdir()} == files
    columns = pl.read_csv(root / "figures" / figures.COLUMNS)
    assert set(columns["column"]) == {name for plot in plots for name in plot.data.columns}
    assert columns["meaning"].str.len_chars().min() > 3
    picture = (root / "figures" / "copies.png").read_bytes()
    at = picture.index(b"pHYs") + 4
    assert round(int.from_bytes(picture[at : at + 4]) * 0.0254) == 300
    for plot in plots:
        saved = pl.read_csv(root / "figures" / f"{plot.name}.csv", schema=plot.data.schema)
        assert saved.equals(plot.data)


def test_the_same_bytes_every_time(written: WRITTEN, tmp_path: Path) -> None:
    root, _ = written
    summary = tables.read(root / "data" / "summary.parquet", SUMMARY)
    plots = figures.plots(summary, tables.read(root / "data" / EVIDENCE_FILE, EVIDENCE))
    (copies,) = [plot for plot in plots if plot.name == "copies"]
    style.save(figures.figure(copies), tmp_path, "copies")
    for name in ("copies.svg", "copies.png", "copies.pdf"):
        assert (tmp_path / name).read_bytes() == (root / "figures" / name).read_bytes()


def test_categories_stand_out_in_light_and_dark() -> None:
    css = (Path(figures.__file__).parent / "page.css").read_text(encoding="utf-8")
    surfaces = re.findall("--card: (#[0-9a-f]{6})", css)
    assert len(surfaces) == 3  # light, dark, print
    for each in surfaces:
        for colour in colours.CATEGORIES:
            assert contrast(colour, each) >= 3, (colour, each)


def test_words_stand_out_in_light_and_dark() -> None:
    css = (Path(figures.__file__).parent / "page.css").read_text(encoding="utf-8")
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


def test_small_and_odd_studies_are_drawn() -> None:
    """Three blocks have no quartiles; a perplexity may be infinite; names may collide in files."""
    models = {"a.b": ("f", 3), "a-b": ("f", 3)}
    made = synthetic.study(models=models, per_copies=4).models
    summary, rows = aggregate(made), evidence(made)
    endless = pl.when((pl.col("metric") == "word_perplexity") & (pl.col("block") == 0))
    summary = summary.with_columns(
        endless.then(float("inf")).otherwise(pl.col("value")).alias("value")
    )
    names = [plot.name for plot in figures.plots(summary, rows)]
    assert "quartiles-f" not in names
    assert names.count("scatter-a-b") == 1
    assert "scatter-a-b-again-2" in names
    by_name = {plot.name: plot for plot in figures.plots(summary, rows)}
    _, drawn = line(panels(by_name["perplexity"])["f"], "a.b")
    assert np.isnan(drawn[0])
    assert np.isfinite(drawn[1:]).all()


def test_seeds_of_one_recipe_are_one_line(study: synthetic.Study) -> None:
    models = study.models[:3]
    seeds = [replace(models[0], name=f"s-{i}", recipe="r") for i in range(2)]
    other = replace(synthetic.study(synthetic.NOTHING).models[0], name="s-2", recipe="r")
    made = [*seeds, models[1], other]
    summary = aggregate(made)
    pooled = views.over_seeds(summary)
    assert pooled["model"].unique(maintain_order=True).to_list() == [
        "s-0 (3 seeds)",
        "tiny-pythia-12",
    ]
    where = {"intervention": "block-05", "metric": "exact_match", "split": "memorized"}
    own = summary.filter(family="pythia", **where).filter(pl.col("model").str.starts_with("s-"))
    [row] = pooled.filter(model="s-0 (3 seeds)", **where).iter_rows(named=True)
    low, high = student(own["value"].to_numpy())
    assert row["value"] == pytest.approx(own["value"].mean())
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    assert row["difference"] == pytest.approx(own["difference"].mean())
    alone = summary.filter(model="tiny-pythia-12")
    assert pooled.filter(model="tiny-pythia-12").equals(alone)
    assert views.over_seeds(alone) is alone
    every = figures.plots(summary, evidence(made))
    lines = next(plot for plot in every if plot.name == "kept").data
    assert lines["model"].unique(maintain_order=True).to_list() == [
        "s-0 (3 seeds)",
        "tiny-pythia-12",
    ]
