"""When a text becomes recitable and a block necessary, on summaries whose answer is known."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pytest

from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.training_time import necessary, over_steps, recitable
from pipeline.report import figures
from pipeline.report.markup import plain
from pipeline.report.plots.training_time import trajectories
from tests.analysis import synthetic

STEPS = [("a-20", "long", 20), ("a-0", "long", 0), ("a-5", "long", 5), ("b", "short", 7)]
"""Model, run and step; the order of the study is not that of the steps."""


def _summary(exact: Mapping[str, Sequence[float]]) -> pl.DataFrame:
    """Of models: exact match of the baseline, and with each block bypassed."""
    of = {"task": "memorization", "split": "memorized", "family": "f", "n": 64, "chance": None}
    rows = []
    for model, values in exact.items():
        for at, value in enumerate(values):
            whole, change = at == 0, value - values[0]
            # as the real one: no interval where every sample changes, or none does
            known, least = 0 < abs(change) < 1, 0.001 if change else 1.0
            rows += [
                {
                    **of,
                    "model": model,
                    "intervention": "baseline" if whole else f"block-{at - 1:02}",
                    "group": "baseline" if whole else "each",
                    "edit": None if whole else "identity",
                    "block": None if whole else at - 1,
                    "metric": metric,
                    "value": value,
                    "low": max(0.0, value - 0.1),
                    "high": min(1.0, value + 0.1),
                    "difference": None if whole else change,
                    "difference_low": change - 0.01 if known else None,
                    "difference_high": change + 0.01 if known else None,
                    "p_holm": None if whole else least,
                    "higher_is_better": None,
                }
                for metric in ("exact_match", "token_accuracy")
            ]
    types = {"block": pl.UInt16, "higher_is_better": pl.Boolean, "chance": pl.Float64}
    return pl.DataFrame(rows, infer_schema_length=None, schema_overrides=types)


SUMMARY = _summary(
    {
        "b": [0.9, 0.9, 0.0, 0.9, 0.9],
        "a-0": [0.0, 0.0, 0.0, 0.0, 0.0],
        "a-5": [0.15, 0.0, 0.15, 0.05, 0.15],
        "a-20": [1.0, 0.0, 0.6, 1.0, 0.9],
    }
).with_columns(p_holm=pl.when(model="a-20", block=3).then(0.06).otherwise("p_holm"))


def test_each_step_is_compared_with_its_own_baseline_and_necessary_is_what_stays_so() -> None:
    rows = over_steps(SUMMARY, STEPS)
    assert rows["run"].unique().to_list() == ["long"], "a run of one step has no course"
    assert rows["step"].unique(maintain_order=True).to_list() == [0, 5, 20]
    assert rows.height == 3 * 2 * 5
    last = rows.filter(step=20, metric="exact_match")
    assert last["model"].unique().to_list() == ["a-20"]
    assert last["difference"].to_list() == pytest.approx([None, -1.0, -0.4, 0.0, -0.1])
    # the first without an interval, the last not after the adjustment
    assert last["falls"].to_list() == [False, True, True, False, False]
    # necessary is what stays so: block 2 is at step 5, and no longer at step 20
    assert necessary(rows, "exact_match").rows() == [(0, 5), (1, 20)]


def test_recitable_is_above_the_first_step() -> None:
    cases = [(20, 0, 0.15, 1), (5, 0, 0.25, 1), (None, 0.5, 0.5, 0.65), (5, 0, 0.3, 0)]
    for step, *baselines in cases:
        exact = {
            name: [each, each] for name, each in zip(("a-0", "a-5", "a-20"), baselines, strict=True)
        }
        assert recitable(over_steps(_summary(exact), STEPS)) == step


def test_the_words_of_the_figure() -> None:
    [plot] = trajectories(SUMMARY, STEPS)
    assert plain(plot.words()["finding"]) == (
        "long: memorized samples become recitable at step 20, where exact match is 100.0% "
        "[90.0, 100.0]; at step 0 it is 0.0% [0.0, 10.0]; at 2 of 4 blocks the bypass lowers "
        "it up to the last step, first at block 0, from step 5 on."
    )
    told = "Exact match: from step 5, block 0; from step 20, block 1; never, blocks 2, 3."
    assert told in plain(plot.words()["caption"])
    assert "at 3 steps" in plain(plot.words()["alt"])
    nothing = _summary({name: [0.5, 0.5] for name, _, _ in STEPS})
    [plot] = trajectories(nothing, STEPS)
    assert plain(plot.words()["finding"]) == (
        "long: memorized samples do not become recitable between step 0 (50.0% [40.0, 60.0]) and "
        "step 20 (50.0% [40.0, 60.0]); at none of 1 block does the bypass lower it up to the last "
        "step."
    )
    assert list(trajectories(SUMMARY, [])) == []


def test_what_is_drawn_is_the_data() -> None:
    [plot] = trajectories(SUMMARY, STEPS)
    whole, exact, *_ = figures.figure(plot).axes
    [line] = [each for each in whole.lines if each.get_label() == "exact match"]
    np.testing.assert_allclose(line.get_xydata(), [[0, 0.0], [1, 0.15], [2, 1.0]])
    assert [label.get_text() for label in whole.get_xticklabels()] == ["0", "5", "20"]
    cells = {(bar.get_x() + 0.5, bar.get_y() + 0.5): bar.get_facecolor() for bar in exact.patches}
    assert set(cells) == {(x, block) for x in range(3) for block in range(4)}
    red = {place for place, (r, _, b, _) in cells.items() if r > b + 0.05}
    assert red == {(1, 0), (1, 2), (2, 0), (2, 1), (2, 3)}
    assert cells[1, 1] == cells[2, 2] == cells[0, 0], "no change has one colour"
    [dots] = exact.lines
    assert {tuple(each) for each in dots.get_xydata()} == {(1, 0), (1, 2), (2, 0), (2, 1)}


def test_benchmarks_have_a_map_of_their_own() -> None:
    models = {"one": ("f", 4), "two": ("f", 4)}
    made = synthetic.study(models=models, accuracies={"tiny_piqa": (0.5, 0.9)}, per_copies=8)
    summary = aggregate(made.models)
    [plot] = trajectories(summary, [("one", "r", 1), ("two", "r", 2)])
    metrics = plot.data["metric"].unique(maintain_order=True).to_list()
    assert metrics == ["exact_match", "token_accuracy", "acc"]
    titles = [axes.get_title(loc="left") for axes in figures.figure(plot).axes]
    maps = [f"{name}: change" for name in ("exact match", "token accuracy", "tiny_piqa")]
    assert titles[:4] == ["unmodified model", *maps]
