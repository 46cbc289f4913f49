"""What the theory's tables say is what the page says, and it turns around when they do."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from scipy import stats
from test_page import HOSTILE, Outline

from pipeline.analysis import aggregate, link, views
from pipeline.analysis.evidence import EVIDENCE, EVIDENCE_FILE
from pipeline.analysis.kept import kept
from pipeline.analysis.rows import SUMMARY
from pipeline.analysis.text import visible
from pipeline.analysis.theory import Theory, over_seeds, per_block, read_theory
from pipeline.report import appendices, figures, page, style
from pipeline.report.markup import plain
from pipeline.report.numbers import plain_values
from pipeline.report.plots.plot import Plot
from pipeline.report.statements import (
    Statement,
    attention_only_statements,
    routing,
    theorem_statements,
)
from pipeline.report.theory_sections import theory_sections
from pipeline.workflow import tables
from tests.analysis import synthetic, synthetic_theory

NAME = "tiny-neo-8"
MODELS = {NAME: ("gpt-neo", 8)}
N = 24  # samples of the theory's tables
STEADY = synthetic.Story(lambda depth: 0.15 + 0.7 * depth, lambda depth: 0.2 + 0.6 * depth)
"""The later the block, the less its bypass takes."""


Made = tuple[pl.DataFrame, pl.DataFrame, Theory]


def make(root: Path, **how: object) -> Made:
    """A small study with theory's tables below `root`: its summary, and what is read."""
    study = synthetic.study(STEADY, MODELS, {"tiny_piqa": (0.5, 0.9)}, per_copies=32)
    models = study.write(root)
    aggregate.write_summary("tiny", models, root, root / "summary.parquet")
    synthetic_theory.write(root, MODELS, **how)  # type: ignore[arg-type]
    summary = tables.read(root / "summary.parquet", SUMMARY)
    return summary, tables.read(root / EVIDENCE_FILE, EVIDENCE), read_theory(root, models)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("theory")


@pytest.fixture(scope="module")
def made(root: Path) -> Made:
    return make(root)


@pytest.fixture(scope="module")
def theory(made: Made) -> Theory:
    return made[2]


@pytest.fixture(scope="module")
def plots(made: Made) -> dict[str, Plot]:
    every = figures.plots(*made)
    return {plot.name: plot for plot in every[-8:]}


def said(summary: pl.DataFrame, evidence: pl.DataFrame, theory: Theory) -> list[str]:
    """The opening of each section, as one text."""
    sections = theory_sections(summary, evidence, theory)
    return [" ".join(map(plain, section.opening)) for section in sections]


def starting(statements: Sequence[Statement], words: str) -> Statement:
    (found,) = [each for each in statements if plain(each.text).startswith(words)]
    return found


# ------------------------------------------------------------------------------ what is read


def test_medians_and_quartiles_worked_out_by_hand(theory: Theory) -> None:
    """Half of the samples change by c, half by 1.5 c: the median is 1.25 c."""
    row = theory.triangle.filter(split="memorized", block=2, after=8).row(0, named=True)
    size = 1 + 0.1 * (8 - 2)
    assert row["relative"] == pytest.approx(1.25 * size / 4)
    assert (row["low"], row["high"]) == pytest.approx((size / 4, 1.5 * size / 4))
    assert row["kl"] == pytest.approx((size**2 + (1.5 * size) ** 2) / 2)
    assert (row["n"], row["n_blocks"]) == (N // 2, 8)
    logits = theory.quantities.filter(quantity="logits", block=2).row(0, named=True)
    assert logits["mean"] == pytest.approx(1.25 * size / 4)
    assert logits["low"] < logits["mean"] < logits["high"]


def test_bounds_by_block(theory: Theory) -> None:
    first, second = (per_block(theory.bounds, theorem) for theorem in (1, 2))
    assert (first.height, second.height) == (8, 7)  # there is no block after the last
    for rows in (first, second):
        for column, factor in (
            ("printed", synthetic_theory.PRINTED),
            ("coarse", synthetic_theory.COARSE),
            ("corrected", synthetic_theory.CORRECTED),
        ):
            np.testing.assert_allclose(rows[column], factor * rows["change"])
        assert rows["printed_violated"].sum() == 0
        assert rows["n"].to_list() == [N] * rows.height


def test_means_over_seeds() -> None:
    rows = pl.DataFrame({"x": [1, 1, 1, 2], "value": [0.1, 0.2, 0.3, 0.4], "bound": [0.5] * 4})
    three, one = over_seeds(rows, "x").rows(named=True)
    reach = 4.302653 * 0.1 / 3**0.5  # the t distribution of two degrees of freedom
    assert (three["value"], three["low"]) == pytest.approx((0.2, 0.2 - reach))
    assert (three["high"], three["seeds"]) == (pytest.approx(0.2 + reach), 3)
    assert (one["value"], one["low"], one["high"]) == (0.4, None, None)
    (cut, _) = over_seeds(rows, "x", share=True).rows(named=True)
    assert cut["low"] == 0
    halves = pl.DataFrame({"x": [1, 1], "value": [4.0, 16.0], "bound": [None, None]})
    assert over_seeds(halves, "x", log=True)["value"].to_list() == pytest.approx([8.0])


def test_what_is_missing_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    summary, rows, _ = make(tmp_path)
    models = [*views.models(summary), ("nowhere", "gpt-neo")]
    (tmp_path / "theory" / "low_rank.parquet").unlink()
    (tmp_path / "theory" / "lookup.parquet").write_bytes(b"PAR1 and no more")
    theory = read_theory(tmp_path, models)
    assert [each.partition(": ")[0] for each in theory.missing] == [
        "The theorems were not measured on nowhere",
        "There is no table of the lookup experiment",
    ]
    names = [plot.name for plot in figures.plots(summary, rows, theory)]
    assert "low-rank" not in names
    assert "theorem-1" in names
    assert not [
        s for s in attention_only_statements(theory) if plain(s.text).startswith("Low entropy")
    ]


def test_nothing_is_there(tmp_path: Path, made: Made) -> None:
    nothing = read_theory(tmp_path, [(NAME, "gpt-neo")])
    assert not nothing.missing
    assert theory_sections(*made[:2], nothing) == []
    with_it, without = figures.plots(*made[:2], nothing), figures.plots(*made[:2])
    assert [plot.name for plot in with_it] == [plot.name for plot in without]


# ------------------------------------------------------------------------------ the link


def test_a_partial_correlation_is_that_of_the_residuals() -> None:
    random = np.random.default_rng(0)
    z = random.normal(size=30)
    x, y = z + random.normal(size=30), z + random.normal(size=30)
    ranks = np.array([stats.rankdata(each) for each in (x, y, z)])
    inverse = np.linalg.inv(np.corrcoef(ranks))
    found = link.rank_correlation(x, y, 0, given=[z])
    assert found.value == pytest.approx(-inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1]))
    assert found.low < found.value < found.high
    t = found.value * np.sqrt(27 / (1 - found.value**2))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), 27), abs=0.04)
    assert np.isnan(link.rank_correlation(z, y, 0, given=[z]).value)
    assert np.isnan(link.rank_correlation(x[:3], y[:3], 0, given=[z[:3]]).value)


def test_rank_correlation_is_that_of_scipy() -> None:
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 20))
    other[3] = other[4]
    found = link.rank_correlation(one, other + one, seed=0)
    expected = stats.spearmanr(one, other + one)
    assert found.value == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.01)
    assert found.low < found.value < found.high
    again = link.rank_correlation(one, other + one, seed=0)
    assert again == found


def test_rank_correlation_of_few_or_equal_pairs() -> None:
    few = link.rank_correlation(np.array([1.0, 2]), np.array([1.0, 2]), seed=0)
    equal = link.rank_correlation(np.arange(9.0), np.ones(9), seed=0)
    assert np.isnan([few.value, equal.value, few.p_value, equal.p_value]).all()
    three = link.rank_correlation(np.arange(3.0), np.arange(3.0), seed=0)
    assert (three.value, three.low, three.high) == (1, -1, 1)
    assert three.p_value > 0.2  # of six orders, two are as extreme
    perfect = link.rank_correlation(np.arange(12.0), np.arange(12.0), seed=0)
    assert 0.9 < perfect.low < perfect.high == 1


@pytest.mark.parametrize("relation", [0.0, 0.5, 0.9])
def test_intervals_of_rank_correlations_hold_the_truth(relation: float) -> None:
    """For normal pairs Spearman's coefficient is known; also at equal values of a third."""
    random = np.random.default_rng(1)
    truth = 6 / np.pi * np.arcsin(relation / 2)
    held = [0, 0]
    for _ in range(600):
        one, noise, third = random.normal(size=(3, 12))
        other = relation * one + np.sqrt(1 - relation**2) * noise
        for i, given in enumerate(([], [third])):
            found = link.rank_correlation(one, other, 0, draws=1, given=given)
            held[i] += found.low <= truth <= found.high
    assert min(held) / 600 >= 0.92


def test_losses_are_those_of_the_summary(made: Made) -> None:
    summary, evidence, theory = made
    shares = kept(evidence, pooled=False)
    row = (
        link.pairs(summary, evidence, theory.quantities)
        .filter(quantity="kl", block=3, measure="suffix_log_prob")
        .row(0, named=True)
    )
    rows = summary.filter(metric="suffix_log_prob", split="memorized")
    values = dict(rows.select("intervention", "value").iter_rows())
    assert row["lost"] == pytest.approx(values["baseline"] - values["block-03"])
    (lost,) = link.losses(summary, shares).filter(block=3, measure="exact_match").rows(named=True)
    single = shares.filter(group="block", block=3, measure="exact_match")
    (share,) = single.rows(named=True)
    assert (lost["lost"], lost["lost_low"]) == (1 - share["kept"], 1 - share["high"])


def test_the_verdict_turns_around_with_the_data(made: Made, tmp_path: Path) -> None:
    theorems, _ = said(*made)
    assert "The bound as printed is not found to tell which blocks memorization needs" in theorems
    assert "in 0 of 1 model (ρ -" in theorems
    logits = "that reaches the logits, that correlation is above 0, beyond chance, in {} of 1 model"
    assert logits.format(1) in theorems
    assert "the damage itself" in theorems
    turned, _ = said(*make(tmp_path, rising=True))
    assert "The bound as printed tells which blocks memorization needs" in turned
    assert logits.format(0) in turned
    assert "the damage itself" not in turned


def test_a_study_without_losses_says_so(made: Made) -> None:
    summary, evidence, theory = made
    bare = summary.filter(pl.col("block").is_null())
    assert "No block's loss was measured" in said(bare, evidence.clear(), theory)[0]


def test_the_table_of_correlations(made: Made) -> None:
    section, _ = theory_sections(*made)
    assert list(section.heading)[2::2] == list(link.LOSSES.values())
    assert [row[0] for row in section.rows] == [NAME] * 5
    found = link.correlations(link.pairs(made[0], made[1], made[2].quantities))
    value = found.filter(quantity="printed", measure="exact_match")["value"][0]
    assert section.rows[0][2].value == value


# ------------------------------------------------------------------------------ the statements


def test_theorems_hold_or_fail_as_the_tables_say(theory: Theory, tmp_path: Path) -> None:
    first = starting(theorem_statements(theory.bounds), "Theorem 1: ")
    assert (plain(first.verdict), first.degree) == (f"holds in all {8 * N}", "all")
    assert "The bound is 10 times the change" in plain(first.evidence)
    corrected = starting(theorem_statements(theory.bounds), "Theorem 1, corrected")
    assert "The best is 2.0 times the change" in plain(corrected.evidence)
    summary, evidence, broken = make(tmp_path, violated=(0, 7))
    first = starting(theorem_statements(broken.bounds), "Theorem 1: ")
    assert (plain(first.verdict), first.degree) == (f"fails in 2 of {8 * N}", "some")
    second = starting(theorem_statements(broken.bounds), "Theorem 2: ")
    assert plain(second.verdict) == f"fails in 1 of {7 * N}"  # there is no block after the last
    opening, _ = said(summary, evidence, broken)
    assert f"is exceeded in 2 of {8 * N} cases, that of Theorem 2 in 1 of {7 * N};" in opening
    assert "are never exceeded" in opening


def test_growth_and_order(theory: Theory) -> None:
    """One block later every change is twice as large, and so larger than the next block's own."""
    statements = theorem_statements(theory.bounds)
    for words in ("A difference grows", "Of two blocks in a row"):
        assert plain(starting(statements, words).verdict) == f"holds in all {7 * N}"
    assert "2.0 times as large" in plain(starting(statements, "A difference grows").evidence)
    shrinking = theory.bounds.with_columns(pl.col("next_change") / 4)
    for words in ("A difference grows", "Of two blocks in a row"):
        assert starting(theorem_statements(shrinking), words).degree == "none"


def test_attention_only_statements_by_hand(theory: Theory) -> None:
    statements = attention_only_statements(theory)
    verdicts = {
        "A sum of outer": "fails in 4 of 8",  # twelve pairs or more at D = 8, not 1.6 or 3.2
        "f_ls loses": "holds in all 4",
        "f_wls loses": "fails in 4 of 4",
        "Our three bounds": "holds in all 24",
        "Low entropy": "undefined in all 2",
        "the same with e^{H}": "holds in all 1",
        "the same with the measured": "holds in all 2",
        "H d_h + d": "holds in all 1",
        "H d_h sequences": "holds in all 1",
        "Built for all": "holds in all 1",
        "Accuracy is at least": "holds in all 24",
        "What is stored grows": "fails in 3 of 3",
        "A drop under bypass": "fails in 1 of 1",
    }
    for words, verdict in verdicts.items():
        found = next(s for s in statements if plain(s.text).startswith(words))
        assert plain(found.verdict) == verdict, found
    evidence = {
        "A sum of outer": "50% right: 18 at D = 8, 36 at D = 16; 99% right: 2 at D = 8, 5 at",
        "Our three bounds": "variance 1.5 times, range 2.0 times, spectral 4.0 times",
        "Low entropy": "Says nothing in 2 of 2 cases: a logarithm or a factor is undefined there.",
        "the same with the measured": "In the median the bound is 2 times the loss.",
        "What is stored grows": "to the power of 0.9 to 1.1 (one fit per seed, up to 90% accuracy)",
        "A drop under bypass": "Stored in the heads: 98%, bypassed 6%. Stored in the MLP, behind",
    }
    for words, part in evidence.items():
        assert part in plain(starting(statements, words).evidence)
    words = "f_ls loses at most N‖π‖² σ² + (N‖π‖)^{3/2} σ³, with ‖π‖ the largest joint"
    joint = starting(statements, words)
    assert plain(joint.verdict) == "fails in 4 of 4"
    assert "the loss is 10 times the bound" in plain(joint.evidence)


def test_statements_turn_around_with_the_data(made: Made, theory: Theory) -> None:
    summary, evidence, _ = made
    assert "The bypass does not tell them apart" in said(summary, evidence, theory)[1]
    other = synthetic_theory.attention_only(mlp_bypassed=0.9, power=2.0)
    told = replace(theory, experiments={**theory.experiments, "attention_only": other})
    stored = routing(other)["mlp"]
    ends = [stored["before"].value, stored["after"].value]
    assert ends == pytest.approx([0.96, 0.9])
    statements = attention_only_statements(told)
    assert starting(statements, "A drop under bypass").degree == "all"
    assert starting(statements, "What is stored grows").degree == "all"
    assert "a bypass tells two models apart" in said(summary, evidence, told)[1]
    below = other.with_columns(pl.when(pl.col("bound") < 1).then(pl.lit(0.99)).alias("bound"))
    low = replace(theory, experiments={"attention_only": below})
    assert starting(attention_only_statements(low), "Accuracy is at least").degree == "none"


def test_statements_are_counted_in_the_opening(made: Made) -> None:
    _, opening = said(*made)
    printed = [s for s in attention_only_statements(made[2]) if s.printed]
    hold = sum(s.degree == "all" for s in printed)
    assert f"Of {len(printed)} readings of what is printed, {hold} hold in every case" in opening


# ------------------------------------------------------------------------------ the figures


def panels(plot: Plot) -> list[Axes]:
    return [axes for axes in figures.figure(plot).axes if axes.get_label() != "<colorbar>"]


def shown(plot: Plot, word: str) -> str:
    """The finding, reading, caption or alt of a figure as text."""
    return plain(plot.words()[word])


def drawn(axes: Axes, label: str) -> tuple[list[float], list[float]]:
    found = next(each for each in axes.get_lines() if each.get_label() == label)
    return list(found.get_xdata()), list(found.get_ydata())


def test_the_figures_of_theory_come_last(plots: dict[str, Plot]) -> None:
    assert list(plots) == [
        "divergence-triangle",
        "theorem-1",
        "theorem-2",
        "damage",
        "capacity",
        "low-rank",
        "attention-only",
        "routing",
    ]
    for plot in plots.values():
        assert all(map(plain, plot.words().values()))


def test_triangle(plots: dict[str, Plot]) -> None:
    memorized, control = panels(plots["divergence-triangle"])
    assert memorized.get_title("left") == f"{NAME}\nmemorized"
    assert control.get_title("left") == f"{NAME}\ncontrol"
    meshes = [each for each in memorized.collections if isinstance(each, QuadMesh)]
    cells = [np.asarray(mesh.get_array()).ravel() for mesh in meshes]
    data = plots["divergence-triangle"].data.filter(split="memorized").sort("block", "after")
    for block in range(8):
        own = data.filter(block=block)["relative"].to_list()
        np.testing.assert_allclose(cells[block], own[:-1])
        assert cells[8][block] == pytest.approx(own[-1])  # the logits, apart


def test_bounded(plots: dict[str, Plot]) -> None:
    (axes,) = panels(plots["theorem-1"])
    rows = plots["theorem-1"].data
    assert axes.get_yscale() == "log"
    for column, label in (
        ("printed", "bound as printed"),
        ("coarse", "bound of norms and spread"),
        ("corrected", "corrected bound"),
        ("change", "measured change, median and quartiles"),
    ):
        assert drawn(axes, label) == (list(range(8)), rows[column].to_list())
    assert "0 exceed the bound as printed" in shown(plots["theorem-1"], "finding")
    assert "Crosses" not in shown(plots["theorem-1"], "reading")


def test_the_titles_say_what_is_in_the_data(plots: dict[str, Plot]) -> None:
    """The numbers are computed once more, row by row."""
    rows = plots["divergence-triangle"].data.filter(split="memorized").rows(named=True)
    later = [row for row in rows if row["block"] > 0]
    after, logits = (
        [100 * row["relative"] for row in later if row["after"] == (row["block"] if near else 8)]
        for near in (True, False)
    )
    moved = [f"{min(each):.0f}–{max(each):.0f}%" for each in (after, logits)]
    assert f"by {moved[0]} of its length" in shown(plots["divergence-triangle"], "finding")
    assert f"the logits by {moved[1]} (excluding block 0)." in shown(
        plots["divergence-triangle"], "finding"
    )
    ranks = []
    for quantity in ("logits", "printed"):
        own = plots["damage"].data.filter(quantity=quantity, measure="exact_match")
        ranks.append(float(f"{stats.spearmanr(own['mean'], own['lost']).statistic:.2f}"))
    told = [f"ρ = {rank:+.2f}" for rank in ranks]
    found = shown(plots["damage"], "finding")  # displacement is unknown here
    assert f"{told[0]}; the loss and the printed bound with {told[1]}." in found
    pairs = plots["capacity"].data.rows(named=True)
    widest = {(row["experiment"], row["quantity"]): 0 for row in pairs}
    for row in pairs:
        key = row["experiment"], row["quantity"]
        widest[key] = max(widest[key], row["width"])
    held = [
        row["value"] / row["bound"]
        for row in pairs
        if row["width"] == widest[row["experiment"], row["quantity"]]
    ]
    ends = " to ".join(dict.fromkeys(f"{end:.1f}" for end in (min(held), max(held))))
    assert f"holds {ends} times the D pairs" in shown(plots["capacity"], "finding")
    bounds = plots["low-rank"].data.rows(named=True)
    counts = []
    for printed in (True, False):
        own = [row for row in bounds if row["statement"].startswith("printed") == printed]
        counts.append(f"{sum(row['bound'] < row['value'] for row in own)} of {len(own)}")
    assert f"in {counts[0]} cases, the corrected ones in {counts[1]}." in shown(
        plots["low-rank"], "finding"
    )
    shapes = [row for row in plots["attention-only"].data.rows(named=True) if row["bound"]]
    above = sum(row["value"] > row["bound"] for row in shapes)
    assert f"of {above} of {len(shapes)} shapes" in shown(plots["attention-only"], "finding")
    assert shown(plots["routing"], "finding") == (
        "The bypass takes accuracy from 98% to 6% where the model stores in its heads and from "
        "96% to 8% where the model stores in its MLP."
    )


def test_violations_are_marked(tmp_path: Path) -> None:
    plots = {plot.name: plot for plot in figures.plots(*make(tmp_path, violated=(0, 3)))}
    (axes,) = panels(plots["theorem-1"])
    marks = [
        np.asarray(each.get_offsets())
        for each in axes.collections
        if isinstance(each, PathCollection) and each.get_label() == "exceeded by a sample"
    ]
    rows = plots["theorem-1"].data
    np.testing.assert_allclose(marks[0], [[b, rows["printed"][b]] for b in (0, 3)])
    assert "2 exceed the bound as printed and 0 a corrected one" in shown(
        plots["theorem-1"], "finding"
    )
    assert "Crosses" in shown(plots["theorem-1"], "reading")


def test_damage(plots: dict[str, Plot]) -> None:
    above, below = panels(plots["damage"])
    for axes, quantity in ((above, "logits"), (below, "printed")):
        rows = plots["damage"].data.filter(quantity=quantity, measure="exact_match").sort("block")
        points = [
            np.asarray(each.get_offsets())
            for each in axes.collections
            if isinstance(each, PathCollection)
        ]
        expected = rows.select("mean", "lost").to_numpy()
        np.testing.assert_allclose(points[0], expected[1:])
        np.testing.assert_allclose(points[1], expected[:1])  # block 0, hollow
        value = stats.spearmanr(expected[:, 0], expected[:, 1]).statistic
        words = [text.get_text() for text in axes.texts]
        assert words[0] == f"● ρ = {value:.2f}".replace("-", "−")


def test_capacities(plots: dict[str, Plot]) -> None:
    (axes,) = panels(plots["capacity"])
    x, y = drawn(axes, "sum of outer products, 50% right")
    assert x == [8, 16]
    np.testing.assert_allclose(y, [12 * 2**0.5, 24 * 2**0.5])
    assert drawn(axes, "the slides: D") == ([8, 16], [8.0, 16.0])


def test_low_ranks(plots: dict[str, Plot]) -> None:
    plain, weighted = panels(plots["low-rank"])
    assert plain.get_title("left") == "f_ls, even"
    for axes, first in ((plain, 10.0), (weighted, 0.5)):
        assert drawn(axes, "measured loss") == ([2, 4], [0.5, 0.25])
        assert drawn(axes, "as printed, largest conditional") == ([2, 4], [first / 2, first / 4])
        assert drawn(axes, "corrected: all values left out") == ([2, 4], [2.0, 1.0])


def test_trained(plots: dict[str, Plot]) -> None:
    by_label = {axes.get_xlabel(): axes for axes in panels(plots["attention-only"])}
    assert len(by_label) == 6
    heads = by_label["heads H"]
    np.testing.assert_allclose(drawn(heads, "attention only"), [[1, 4], [0.2, 0.8]])
    np.testing.assert_allclose(drawn(heads, "lower bound"), [[1, 4], [0.1, 0.4]])
    shared = drawn(by_label["head width d_h"], "heads share one bottleneck")
    np.testing.assert_allclose(shared, [[1, 2, 4], [0.05, 0.14, 0.5]])
    rivals = by_label["parameters"]
    np.testing.assert_allclose(drawn(rivals, "one head and an MLP"), [[1600], [0.9]])
    np.testing.assert_allclose(drawn(rivals, "attention only"), [[400, 1600], [0.2, 0.8]])


def test_routing(plots: dict[str, Plot]) -> None:
    (axes,) = panels(plots["routing"])
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, [0.98, 0.96, 0.2, 0.06, 0.08, 0.05])
    np.testing.assert_allclose(drawn(axes, "best accuracy from one token")[1], [0.1, 0.1])


def test_many_deep_models_are_drawn(made: Made) -> None:
    """Five models are no whole number of rows; 36 blocks leave no room for every tick."""
    summary, evidence, theory = made
    names = [f"model-{i}" for i in range(5)]
    several = pl.concat(summary.with_columns(model=pl.lit(name)) for name in names)
    quantities = pl.concat(theory.quantities.with_columns(model=pl.lit(n)) for n in names)
    copies = pl.concat(
        evidence.with_columns(model=pl.lit(name), recipe=pl.lit(name)) for name in names
    )
    plots = figures.plots(several, copies, Theory(pl.DataFrame(), quantities, pl.DataFrame()))
    (damage,) = [plot for plot in plots if plot.name == "damage"]
    titles = [axes.get_title("left").strip() for axes in panels(damage)]
    assert titles == [*names[:3], *names[:3], *names[3:], *names[3:]]


# ------------------------------------------------------------------------------ the page


def write_page(root: Path, out: Path) -> str:
    page.write_page("tiny", [(NAME, "gpt-neo")], root, out / "tasks", out, {})
    return "".join((out / f"{name}.html").read_text() for name in ("index", "theory"))


def test_the_page_says_what_the_tables_say(
    root: Path,
    made: Made,
    tmp_path: Path,
    plots: dict[str, Plot],
) -> None:
    index = []
    (tmp_path / "figures").mkdir()
    for plot in (plots[name] for name in ("low-rank", "theorem-1", "routing", "capacity")):
        style.save(figures.figure(plot), tmp_path / "figures", plot.name)
        plot.data.write_csv(tmp_path / "figures" / f"{plot.name}.csv")
        index.append(plain_values(plot.words()))
    (tmp_path / "figures" / figures.INDEX).write_text(json.dumps(index))
    html = write_page(root, tmp_path)
    outline = Outline(html)
    assert outline.open == []
    for section in theory_sections(*made):
        assert f">{section.title}</a>" in html
        for sentence in section.opening:
            assert plain(sentence) in outline.text
        for statement in section.statements:
            for words_of in (statement.text, statement.verdict, statement.evidence):
                assert plain(words_of) in outline.text
    order = [a["id"] for tag, a in outline.tags if tag == "h2" and a.get("id")]
    assert order.index("the-theorems-measured") + 1 == order.index("attention-only-transformers")
    assert order.index("attention-only-transformers") > order.index("limits")
    assert 'class="plot single scroll"' in html
    assert "no table of" not in outline.text


def test_a_page_without_theory(tmp_path: Path) -> None:
    study = synthetic.study(models=MODELS, accuracies={"tiny_piqa": (0.5, 0.9)}, per_copies=4)
    models = study.write(tmp_path / "data")
    aggregate.write_summary(
        "tiny", models, tmp_path / "data", tmp_path / "data" / "summary.parquet"
    )
    assert "theorems" not in Outline(write_page(tmp_path / "data", tmp_path)).text
    for folder, name in (("divergence", f"{NAME}.parquet"), ("theory", "attention_only.parquet")):
        (tmp_path / "data" / folder).mkdir()
        (tmp_path / "data" / folder / name).write_bytes(b"PAR1")
    html = write_page(tmp_path / "data", tmp_path)
    text = Outline(html).text
    assert f"The theorems were not measured on {NAME}: " in text
    assert "There is no table of the attention only experiment: " in text
    assert "the-theorems-measured" not in html
    assert "attention-only-transformers" not in html


def test_hostile_names_stay_text(made: Made, tmp_path: Path) -> None:
    summary, evidence, theory = made
    name = pl.lit(HOSTILE)
    summary = summary.with_columns(model=name)
    evidence = evidence.with_columns(model=name, recipe=name)
    frames = (theory.triangle, theory.quantities, theory.bounds)
    named = (frame.with_columns(model=name) for frame in frames)
    theory = Theory(*named, theory.experiments, [HOSTILE])
    drawn_figures = []
    for number, plot in enumerate(figures.plots(summary, evidence, theory)[-8:-4], start=1):
        style.save(figures.figure(plot), tmp_path, plot.name)
        svg = (tmp_path / f"{plot.name}.svg").read_text(encoding="utf-8")
        assert "<script" not in svg
        figure = page.PageFigure(**plot.words(), svg=svg, data=plot.data)
        drawn_figures.append((str(number), figure))
    explained = theory_sections(summary, evidence, theory)
    html = appendices.render_theory("s", explained, drawn_figures)
    assert html.count("<script") == 1  # the page's own
    assert not re.search("[\u202e\u0007]", html)
    assert Outline(html).open == []
    assert visible(HOSTILE) in Outline(html).text
