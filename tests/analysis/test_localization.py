"""Grades of scorers on tables whose answer is known."""

import numpy as np
import polars as pl
import pytest

from pipeline.analysis.localization import ALL, falls, means, merits, removals
from pipeline.localization.schemas import LOCALIZATION, REMOVAL
from pipeline.report.columns import MEANINGS
from pipeline.report.localization import SECTION, Localized, localized
from pipeline.report.markup import plain, template
from pipeline.report.plots.localization import found_first
from pipeline.workflow import tables

N = 6


def shown(graded: Localized) -> str:
    """The section as it stands on the page."""
    page = template("localization.html.jinja")
    return page.render(graded=graded, localization=SECTION, located=[])


Models = dict[str, tuple[str, set[int], list[float]]]


def table(by_model: Models, scorer: str = "mine", seeds: int = 1) -> pl.DataFrame:
    """Scores of one scorer: model -> truth, the blocks that learned, a score a block."""
    rows = [
        (model, f"base-{at // seeds}", at % seeds, truth, f"block-{b:02}", b in true, scorer, s)
        for at, (model, (truth, true, given)) in enumerate(by_model.items())
        for b, s in enumerate(given)
    ]
    schema = tables.dtypes(LOCALIZATION)
    return pl.DataFrame(rows, schema=schema, orient="row")


def removal_of(found: pl.DataFrame, left: float = 0.0, accuracy: float = 0.5) -> pl.DataFrame:
    """What deletion leaves, the same for every scorer."""
    keys = found.select("model", "base", "seed", "truth", "scorer").unique(maintain_order=True)
    of_all = {"exact_match": 1.0, "exact_match_left": left, "accuracy": 0.5}
    of_all |= {"accuracy_left": accuracy}
    return tables.cast(keys.with_columns(places=pl.lit("block-00"), **of_all), REMOVAL)


def one_each(truth: str, blocks: int, *, first: bool = True) -> Models:
    """Four models of each of which one block learned, which is scored first, or last."""
    return {
        f"{truth}-{b}": (truth, {b}, [float((b == i) == first) for i in range(blocks)])
        for b in range(4)
    }


def test_merits_by_hand() -> None:
    made = merits(
        table(
            {
                "first": ("mlp", {2}, [0.1, 0.2, 0.9, 0.0]),
                "second": ("mlp", {1}, [0.9, 0.5, 0.1, 0.0]),
                "two first": ("mlp", {0}, [1.0, 1.0, 0.0, 0.0]),
                "all alike": ("mlp", {3}, [0.5, 0.5, 0.5, 0.5]),
                "first and last": ("two", {0, 3}, [3.0, 2.0, 1.0, 0.0]),
                "both tied with one": ("two", {0, 1}, [1.0, 1.0, 1.0, 0.0]),
            }
        )
    )
    assert made["hit"].to_list() == pytest.approx([1, 0, 0.5, 0.25, 1, 2 / 3])
    # of k true places among e alike, the first has the expected rank (e + 1) / (k + 1)
    assert made["rank"].to_list() == pytest.approx([1, 2, 1.5, 2.5, 1, 4 / 3])
    expected = [1, 1 / 2, 1 / 2, 1 / 4, (1 + 2 / 4) / 2, 2 / 3]
    assert made["average_precision"].to_list() == pytest.approx(expected)
    assert made["chance"].to_list() == pytest.approx([1 / 4] * 4 + [1 / 2] * 2)
    assert made["chance_rank"].to_list() == pytest.approx([5 / 2] * 4 + [5 / 3] * 2)


def test_an_oracle_is_at_one_and_a_random_scorer_at_chance() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        models = {f"m-{i}": ("mlp", {i % N}, random.random(N).tolist()) for i in range(48)}
        graded = means(merits(table(models, seeds=4)), ["hit"], ["chance"])
        row = graded.row(by_predicate=pl.col("truth") == ALL, named=True)
        covered += row["hit_low"] <= 1 / N <= row["hit_high"]
        assert (row["n"], row["clusters"]) == (48, 48)
    assert covered >= 90
    oracle = {f"m-{i}": ("mlp", {i % N}, [float(b == i % N) for b in range(N)]) for i in range(12)}
    [row, _] = means(merits(table(oracle)), ["hit", "average_precision"], ["rank"]).to_dicts()
    assert (row["hit"], row["average_precision"], row["rank"]) == (1, 1, 1)
    assert row["hit_high"] == 1 > row["hit_low"] > 0.5


def test_models_of_one_base_count_as_one() -> None:
    """Of 6 bases with 4 models each, all right in 3 and all wrong in 3: as 6 models, not 24."""
    scores = [("mlp", {0}, [float(base % 2 == 0), 0.5]) for base in range(6) for _ in range(4)]
    one = table({f"m-{i}": each for i, each in enumerate(scores)})
    number = pl.col("model").str.slice(2).cast(pl.Int64)
    clustered = one.with_columns(base=pl.format("{}", number // 4), seed=pl.lit(0, pl.Int64))
    wide, narrow = (
        means(merits(frame), ["hit"], []).row(0, named=True) for frame in (clustered, one)
    )
    assert (wide["clusters"], narrow["clusters"]) == (6, 24)
    assert wide["hit"] == narrow["hit"] == 0.5
    assert wide["hit_high"] - wide["hit_low"] > 1.5 * (narrow["hit_high"] - narrow["hit_low"])


def test_ranks_of_scorers_are_shared_where_they_are_equal() -> None:
    scores = {"x": [1.0, 0.0], "y": [0.0, 1.0], "z": [0.0, 1.0]}
    found = pl.concat(table({"a": ("mlp", {1}, each)}, name) for name, each in scores.items())
    graded = means(merits(found), ["hit"], []).filter(truth="mlp")
    assert dict(graded.select("scorer", "place").iter_rows()) == {"x": 3, "y": 1, "z": 1}


def test_a_scorer_that_is_best_where_it_is_defined_stands_on_the_page() -> None:
    blocks, heads = one_each("mlp", 4), one_each("head", 8, first=False)
    found = [table({**blocks, **heads}, name) for name in ("oracle", "random", "zero-out")]
    made = pl.concat([*found, table(blocks, "divergence.kl")])
    graded = localized(made, removal_of(made))
    assert "(divergence under identity)" in plain(graded["opening"])
    assert graded["opening"].values["chance"].value == 1 / 4
    assert "Where head learned" in shown(graded)
    # with a cluster of 1 and one of 3, the ends of the intervals are not known
    found = pl.concat(table(blocks, name) for name in ("oracle", "random", "zero-out"))
    base = pl.when(model="mlp-0").then(pl.lit("a")).otherwise(pl.lit("b"))
    found = found.with_columns(base=base, seed=pl.lit(0, pl.Int64))
    assert "Deleting as many" in shown(localized(found, removal_of(found)))


def test_falls_are_counted_here_and_elsewhere() -> None:
    found = table(
        {"a": ("mlp", {0}, [0.1, 0.5, 0.9, 0.0]), "b": ("mlp", {2}, [0.49, 0.5, 1.0, 0.1])},
        "identity.exact_match",
    )
    removal = removal_of(found)
    by_block = falls(found, removal, "place").filter(~pl.col("here"))
    shares = dict(by_block.select("place", "share").iter_rows())
    assert shares == {"block-00": 0, "block-01": 1, "block-02": 1, "block-03": 0}
    made = {row["here"]: row for row in falls(found, removal, "truth").to_dicts()}
    assert (made[True]["n"], made[True]["share"]) == (2, 0.5)
    assert (made[False]["n"], made[False]["share"]) == (6, 0.5)
    nothing = removal.with_columns(exact_match=pl.lit(0.0))
    assert set(falls(found, nothing)["share"]) == {0.0}


def test_the_page_tells_what_the_tables_hold() -> None:
    right, wrong = one_each("attention", 4), one_each("mlp", 4, first=False)
    names = ("oracle", "random", "identity.exact_match", "scorers/mine.py:my_scorer")
    found = pl.concat([table({**right, **wrong}, name) for name in names])
    told = localized(found, removal_of(found))
    assert ">8</data> models come" in shown(told)
    assert [len(row) for row in told["rows"]] == [len(told["heading"])] * (len(names) + 1)
    assert any("my_scorer" in str(row[0]) for row in told["rows"])
    assert told["opening"]
    assert "in 50.0% [" in plain(told["opening"])
    assert "for the best scorer, identity: recitals lost, mine.py:my_scorer; tied." in shown(told)
    nothing = localized(found, removal_of(found).with_columns(exact_match=pl.lit(0.0)))
    assert not nothing["deleted_rows"]
    assert ">8</data> models come" in shown(nothing)
    assert "Deleting as many" not in shown(nothing)
    [plot] = found_first(found)
    assert plot.draw(plot.data).axes
    assert set(plot.data.columns) <= set(MEANINGS)


def test_deletion_is_clean_if_it_removes_at_no_cost() -> None:
    found = table({"a": ("mlp", {0}, [1.0, 0.0])})
    for left, accuracy, clean in ((0.1, 0.481, 1), (0.11, 0.5, 0), (0.0, 0.47, 0)):
        [row] = removals(removal_of(found, left, accuracy)).to_dicts()
        assert row["removed"] == pytest.approx(1 - left)
        assert row["lost"] == pytest.approx(0.5 - accuracy)
        assert row["clean"] == clean
    nothing = removal_of(found).with_columns(exact_match=pl.lit(0.0))
    assert removals(nothing).is_empty()
