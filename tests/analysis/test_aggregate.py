"""The summary against numbers worked out by hand, and its checks."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars import selectors
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from pipeline.analysis import views
from pipeline.analysis.aggregate import aggregate, write_summary
from pipeline.analysis.measured import ModelTables
from pipeline.analysis.memorized import k_values
from pipeline.analysis.rows import SUMMARY
from pipeline.interventions.interventions import SWEEP, Group, sweep
from pipeline.measure import metrics, schemas
from pipeline.measure.listed import as_table
from pipeline.samples.frame import samples_frame
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.analysis import synthetic


@pytest.fixture
def by_hand() -> ModelTables:
    """One block, four memorized samples and one control; the bypass spoils all but sample 0."""
    splits, copies = ["memorized"] * 4 + ["control"], [64, 64, 32, 32, 0]
    samples = samples_frame(np.arange(20).reshape(5, 4), 1, splits, copies)
    right = {"baseline": [3, 3, 3, 1, 0], "block-00": [3, 2, 1, 0, 0]}
    rows = pl.DataFrame(
        [(name, i, n) for name, counts in right.items() for i, n in enumerate(counts)],
        schema={"intervention": pl.String, "sample_id": pl.UInt32, "right": pl.UInt16},
        orient="row",
    ).join(samples.select("sample_id", "split"), on="sample_id", maintain_order="left")
    measured = {
        "exact_match": pl.col("right") == 3,
        "token_accuracy": pl.col("right") / 3,
        "completion_entropy": 2.0 * pl.col("sample_id"),
        "correct_length": pl.col("right"),
        "teacher_forced_accuracy": pl.col("right") / 3,
        "suffix_log_prob": -1.0 * pl.col("sample_id"),
        "suffix_log_prob_top_40": pl.Series([0.0, -5.0, -14.0, -math.inf, -2000.0] * 2),
        "loss_per_zlib_byte": None,
        "continuation": [1],
        "decoded": True,
    }
    others = {name: 0.0 for name in metrics.MEMORIZATION if name not in (*rows.columns, *measured)}
    memorization = tables.cast(rows.with_columns(**measured, **others), metrics.MEMORIZATION)
    scores = [
        ("quiz", "acc", 0.75, 0.25, 4, True, 0.5),
        ("quiz", "acc_norm", 0.5, 0.1, 4, True, 0.5),
        ("prose", "word_perplexity", 9.0, None, 2, False, None),
    ]
    scored = [(name, *row) for name in right for row in scores]
    benchmarks = pl.DataFrame(scored, tables.dtypes(schemas.BENCHMARKS), orient="row")
    answers = [(name, "quiz", i, None, "acc", float(i != 2)) for name in right for i in range(4)]
    documents = pl.DataFrame(answers, tables.dtypes(schemas.BENCHMARK_DOCUMENTS), orient="row")
    return ModelTables(
        "m", "f", 1, as_table(sweep(1)), samples, memorization, benchmarks, documents
    )


@pytest.fixture(scope="module")
def small() -> synthetic.Study:
    models = {"a": ("pythia", 4), "b": ("pythia", 5), "c": ("gpt-neo", 4), "d": ("gpt-neo", 5)}
    return synthetic.study(models=models, accuracies={"tiny_piqa": (0.5, 0.9)}, per_copies=8)


def value(summary: pl.DataFrame, metric: str, **where: object) -> float:
    where = {"intervention": "block-00", "split": "memorized"} | where
    rows = summary.filter(metric=metric, **where)
    assert rows.height == 1
    return rows["value"][0]


def test_numbers_worked_out_by_hand(by_hand: ModelTables) -> None:
    summary = aggregate([by_hand])
    assert value(summary, "exact_match", intervention="baseline") == 0.75
    assert value(summary, "exact_match") == 0.25
    assert value(summary, "exact_match", split="control") == 0
    assert [value(summary, "exact_match_at_k", k=k) for k in (1, 2, 3)] == [0.75, 0.5, 0.25]
    assert value(summary, "token_accuracy") == pytest.approx(6 / 12)
    assert value(summary, "completion_entropy") == 3.0
    assert value(summary, "suffix_log_prob") == -1.5
    assert value(summary, "correct_length") == 1.5
    assert value(summary, "exact_match_by_copies", copies=64) == 0.5
    assert value(summary, "exact_match_by_copies", copies=32) == 0.0
    assert value(summary, "exact_match_by_copies", copies=0, split="control") == 0.0
    row = summary.filter(metric="exact_match", intervention="block-00", split="memorized")
    assert row.select("low", "high").row(0) == pytest.approx(
        proportion_confint(1, 4, method="wilson")
    )
    assert row.select("n", "block", "model", "family").row(0) == (4, 0, "m", "f")


def test_benchmarks_keep_lm_evals_values(by_hand: ModelTables) -> None:
    summary = aggregate([by_hand]).filter(intervention="baseline")
    acc = summary.filter(metric="acc").row(0, named=True)
    assert (acc["value"], acc["chance"], acc["split"]) == (0.75, 0.5, None)
    assert (acc["low"], acc["high"]) == pytest.approx(proportion_confint(3, 4, method="wilson"))
    # no documents, so the interval is the standard error's
    norm = summary.filter(metric="acc_norm").row(0, named=True)
    assert (norm["low"], norm["high"]) == pytest.approx((0.5 - 0.195996, 0.5 + 0.195996), abs=1e-6)
    # no standard error, no interval
    prose = summary.filter(metric="word_perplexity").select("value", "low", "high")
    assert prose.row(0) == (9.0, None, None)
    # of other documents the mean is no rate: 2 of 3 right, where lm-eval said 3 of 4
    fewer = by_hand.documents.filter(pl.col("doc_id") > 0)
    rows = aggregate([replace(by_hand, documents=fewer)]).filter(metric="acc")
    assert rows["low"][0] == pytest.approx(0.75 - 1.959964 * 0.25, abs=1e-6)


def test_differences_worked_out_by_hand(by_hand: ModelTables) -> None:
    summary = aggregate([replace(by_hand, parameters=123)])
    assert summary["parameters"].unique().to_list() == [123]
    names = ["difference", "difference_low", "difference_high", "p_value", "p_holm"]
    whole = summary.filter(intervention="baseline")
    assert whole.select(names).null_count().row(0) == (whole.height,) * 5
    bypassed = summary.filter(intervention="block-00")
    exact = bypassed.filter(metric="exact_match", split="memorized").row(0, named=True)
    assert exact["difference"] == -0.5
    # of two samples that changed, both for the worse: McNemar's exact test gives 1/2
    assert exact["p_value"] == pytest.approx(0.5, abs=0.05)
    assert exact["p_holm"] == exact["p_value"]  # a family of one
    # two samples say next to nothing
    assert (exact["difference_low"], exact["difference_high"]) == (-1.0, 1.0)
    entropy = bypassed.filter(metric="completion_entropy", split="memorized").row(0, named=True)
    assert (entropy["difference"], entropy["p_value"]) == (0.0, 1.0)
    assert entropy["difference_low"] is None
    acc = bypassed.filter(metric="acc").row(0, named=True)
    assert (acc["difference"], acc["p_value"], acc["difference_low"]) == (0.0, 1.0, -1.0)
    # no documents, no pairs
    assert bypassed.filter(metric="acc_norm").select(names).row(0) == (None,) * 5


def test_a_perplexity_differs_by_its_documents(by_hand: ModelTables) -> None:
    words = np.array([10.0, 20, 30, 40])
    nats = {"baseline": [1.0, 1.1, 1.2, 1.3], "block-00": [1.5, 1.5, 1.8, 1.7]}
    perplexity = {name: math.exp(words @ each / 100) for name, each in nats.items()}
    rows = [
        (name, "prose", i, None, "word_perplexity", -words[i] * value, words[i])
        for name, each in nats.items()
        for i, value in enumerate(each)
    ]
    dtypes = tables.dtypes(schemas.BENCHMARK_DOCUMENTS) | {"weight": pl.Float64}
    documents = pl.DataFrame(rows, schema=dtypes, orient="row")
    benchmarks = by_hand.benchmarks.filter(task="prose").with_columns(
        value=pl.col("intervention").replace_strict(perplexity)
    )
    model = replace(by_hand, benchmarks=benchmarks, documents=documents)
    whole, bypassed = aggregate([model]).filter(task="prose").rows(named=True)
    assert bypassed["difference"] == pytest.approx(perplexity["block-00"] - perplexity["baseline"])
    assert 0 < bypassed["difference_low"] < bypassed["difference"] < bypassed["difference_high"]
    assert bypassed["p_value"] == pytest.approx(1 / 8, abs=0.03)  # 2 of 2^4 sign flips
    # lm-eval has no standard error of it, but the documents have
    assert whole["low"] < whole["value"] < whole["high"]
    # an infinite log-likelihood leaves the other columns alone
    infinite = pl.when(intervention="block-00", doc_id=1).then(-math.inf).otherwise("value")
    endless = pl.when(intervention="block-00").then(math.inf).otherwise("value")
    benchmarks = benchmarks.with_columns(value=endless)
    model = replace(model, benchmarks=benchmarks, documents=documents.with_columns(value=infinite))
    rows = aggregate([model]).filter(task="prose")
    assert rows["difference"].to_list() == [None, None]


def test_holm_is_over_the_single_blocks_of_one_metric_and_edit(summary: pl.DataFrame) -> None:
    groups = [*SWEEP, Group("each", "zero")]
    study = synthetic.study(models={"m": ("gpt-neo", 4)}, per_copies=16, groups=groups)
    exact = aggregate(study.models).filter(metric="exact_match", split="memorized")
    forced = summary.filter(model="tiny-neo-12", metric="teacher_forced_accuracy")
    for rows, count in (
        (forced.filter(split="memorized", group="each"), 12),
        (summary.filter(model="tiny-neo-8", task="tiny_piqa", group="each"), 8),
        (exact.filter(group="each", edit="identity"), 4),
        (exact.filter(group="each", edit="zero"), 4),
    ):
        adjusted = multipletests(rows["p_value"], method="holm")[1]
        assert rows["p_holm"].to_list() == pytest.approx(list(adjusted))
        assert rows.height == count
    assert exact.filter(group="quartiles")["p_holm"].null_count() == 4
    assert summary.filter(pl.col("block").is_null())["p_holm"].drop_nulls().is_empty()


PARTIAL = pl.col("metric").str.contains("^(hidden_|displacement|attention_change|survival)")
"""Not of every intervention, or of some samples alone."""


def test_differences_are_values_less_the_baselines(summary: pl.DataFrame) -> None:
    key = ["model", "split", "task", "metric", "k", "copies"]
    whole = summary.filter(intervention="baseline").select(*key, pl.col("value").alias("whole"))
    rows = summary.filter(pl.col("difference").is_not_null()).join(whole, on=key, nulls_equal=True)
    bypassed = pl.col("intervention") != "baseline"
    # the tables of this study have no documents of wikitext
    expected = summary.filter(~PARTIAL, bypassed, pl.col("task") != "tiny_wikitext")
    assert rows.height == expected.height
    np.testing.assert_allclose(rows["difference"], rows["value"] - rows["whole"], atol=1e-9)
    known = rows.drop_nulls("difference_low")
    assert known.height > 0.5 * rows.height
    assert (known["difference_low"] <= known["difference"] + 1e-9).all()
    assert (known["difference"] <= known["difference_high"] + 1e-9).all()
    assert rows["p_value"].is_between(0, 1, closed="right").all()


def test_k_values() -> None:
    assert k_values(1) == [1]
    assert k_values(50) == [1, 2, 4, 8, 16, 32, 50]


def test_the_grid_is_whole(study: synthetic.Study, summary: pl.DataFrame) -> None:
    assert summary.select("value", "n").null_count().row(0) == (0, 0)
    for model in study.models:
        rows = summary.filter(~PARTIAL, model=model.name)
        per_intervention = rows.group_by("intervention").len()
        assert per_intervention.height == 1 + model.n_blocks + 4
        assert per_intervention["len"].n_unique() == 1
        exact = rows.filter(metric="exact_match").select("intervention", "split", "value")
        longest = rows.filter(metric="exact_match_at_k").filter(pl.col("k") == pl.col("k").max())
        assert exact.equals(longest.select("intervention", "split", "value"))
    assert (summary["low"] <= summary["value"]).all()
    assert (summary["value"] <= summary["high"]).all()


def test_every_defect_is_named(study: synthetic.Study, tmp_path: Path) -> None:
    first, second, third, fourth = study.models
    lacking = first.memorization.remove(intervention="block-03").remove(
        intervention="block-04", sample_id=7
    )
    spoiled = [
        replace(first, memorization=lacking),
        replace(second, benchmarks=pl.concat([second.benchmarks, second.benchmarks.head(1)])),
        replace(third, memorization=third.memorization.with_columns(split=pl.lit("control"))),
        fourth,
    ]
    models = replace(study, models=spoiled).write(tmp_path)
    with pytest.raises(InputError) as caught:
        write_summary("tiny", models, tmp_path)
    message = str(caught.value)
    for expected in (
        "memorization of tiny-pythia-8",
        "block-03",
        "lacks 1, in ['block-04']",
        "benchmarks of tiny-pythia-12",
        "memorization of tiny-neo-8",
    ):
        assert expected in message
    assert "tiny-neo-12" not in message


def test_written_twice_it_is_the_same_file(small: synthetic.Study, tmp_path: Path) -> None:
    models = small.write(tmp_path)
    path, made = tmp_path / "summary.parquet", []
    for _ in range(2):
        write_summary("tiny", models, tmp_path)
        made.append(path.read_bytes())
    assert made[0] == made[1]
    written = tables.read(path, SUMMARY)
    assert written.equals(aggregate(small.models))
    # the models are those asked for, in that order, not what lies in the folder
    some, _ = write_summary("tiny", models[:0:-1], tmp_path)
    assert some["model"].unique(maintain_order=True).to_list() == ["d", "c", "b"]


def test_a_partial_summary_leaves_out_what_failed(small: synthetic.Study, tmp_path: Path) -> None:
    models = small.write(tmp_path)
    (failed, _), (without_benchmarks, _), *_ = models
    (tmp_path / "memorization" / f"{failed}.parquet").unlink()
    (tmp_path / "benchmarks" / f"{without_benchmarks}.parquet").unlink()
    path = tmp_path / "summary.parquet"
    with pytest.raises(InputError) as refused:
        write_summary("tiny", models, tmp_path)
    assert len(refused.value.problems) == 2
    assert not path.exists()
    summary, _ = write_summary("tiny", models, tmp_path, stale={})
    others = [name for name, _ in models[1:]]
    assert summary["model"].unique(maintain_order=True).to_list() == others
    own = summary.filter(model=without_benchmarks)
    assert own["task"].unique().to_list() == ["memorization"]
    assert summary.filter(pl.col("task") != "memorization")["model"].n_unique() == 2
    assert tables.provenance(path)["models"] == others
    # a study that has no benchmarks
    shutil.rmtree(tmp_path / "benchmarks")
    summary, _ = write_summary("tiny", models[1:], tmp_path, benchmarked=False)
    assert summary["task"].unique().to_list() == ["memorization"]
    assert summary["model"].unique(maintain_order=True).to_list() == others
    # a study that has nothing
    shutil.rmtree(tmp_path / "memorization")
    with pytest.raises(InputError, match="no model with tables that match"):
        write_summary("tiny", models, tmp_path, stale={})


@pytest.mark.parametrize(
    "part", ["samples/{1}.parquet", "checkpoints/{0}", "memorization/{0}.parquet"]
)
def test_tables_from_before_a_change_are_left_out(
    small: synthetic.Study, tmp_path: Path, part: str
) -> None:
    models = small.write(tmp_path)
    old = tmp_path / part.format(*models[0])
    kept = [model for model in models if tmp_path / part.format(*model) != old]
    document = tmp_path / "benchmarks" / f"{models[-1][0]}.documents.parquet"
    path = tmp_path / "summary.parquet"
    stale = {"first@x": [old], "second@x": [document]}
    summary, _ = write_summary("tiny", models, tmp_path, stale=stale)
    assert 1 <= len(kept) < len(models)
    assert summary["model"].unique(maintain_order=True).to_list() == [name for name, _ in kept]
    assert summary.filter(model=models[-1][0])["task"].unique().to_list() == ["memorization"]
    assert tables.provenance(path)["stale"] == ["first@x", "second@x"]


@pytest.mark.slow
def test_pieces_do_not_matter(small: synthetic.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = aggregate(small.models)
    monkeypatch.setattr("pipeline.analysis.memorized.CELLS", 1)
    pieces = aggregate(small.models)
    assert pieces.select(~selectors.float()).equals(whole.select(~selectors.float()))
    for name in whole.select(selectors.float()).columns:
        np.testing.assert_allclose(
            pieces[name].to_numpy(), whole[name].to_numpy(), rtol=1e-9, atol=1e-12
        )


def test_other_interventions_are_in_the_summary_and_in_no_claim() -> None:
    groups = [*SWEEP, Group("each", "zero"), Group("last", k=2), Group("heads", "heads")]
    plain, more = (
        aggregate(synthetic.study(models={"m": ("gpt-neo", 4)}, per_copies=16, groups=each).models)
        for each in (SWEEP, groups)
    )
    assert more["intervention"].n_unique() == 1 + 4 + 4 + 4 + 1 + 8
    kinds = more.select("intervention", "edit", "group", "blocks", "block").unique()
    assert kinds.filter(group="heads")["block"].null_count() == 8
    # of four blocks a quarter is one block, and yet another kind of intervention
    for kind in (
        ("baseline", None, "baseline", [], None),
        ("block-02.zero", "zero", "each", [2], 2),
        ("last-2", "identity", "last", [2, 3], None),
        ("quartile-1", "identity", "quartiles", [0], None),
    ):
        assert kinds.row(by_predicate=pl.col("intervention") == kind[0]) == kind
    for cut in (views.single_blocks, views.quartiles, views.baseline):
        assert set(cut(more)["intervention"]) == set(cut(plain)["intervention"])
    assert views.single_blocks(more)["block"].unique().to_list() == [0, 1, 2, 3]
    quartiles = views.quartiles(more).select("intervention", "quartile").unique()
    assert set(quartiles.rows()) == {(f"quartile-{q}", q) for q in range(1, 5)}


def test_tokens_are_right_over_the_samples_that_were_decoded(by_hand: ModelTables) -> None:
    """Of the others those are known that are right, so they would make the mean too high."""
    chosen = pl.col("sample_id").is_in([1, 3])
    known = metrics.unknown(chosen | pl.col("exact_match"))
    frame = by_hand.memorization.with_columns(*known, decoded=chosen)
    summary = aggregate([replace(by_hand, memorization=frame)])
    whole = aggregate([by_hand])
    rows = summary.filter(metric="token_accuracy", split="memorized")
    assert rows["value"].to_list() == pytest.approx([(1 + 1 / 3) / 2, (2 / 3 + 0) / 2])
    assert rows["n"].to_list() == [2, 2]
    assert rows["difference"].to_list()[1] == pytest.approx(-1 / 3)
    assert not summary.filter(metric="token_accuracy", split="control").height
    greedy = {each.name for each in metrics.METRICS if each.needs == "greedy continuation"}
    assert {"token_accuracy", "bleu"} < greedy
    others = ~pl.col("metric").is_in(greedy)
    assert summary.filter(others).equals(whole.filter(others))
    none = frame.with_columns(decoded=False)
    assert not greedy & set(aggregate([replace(by_hand, memorization=none)])["metric"])


def test_tries_until_the_suffix_is_out(by_hand: ModelTables) -> None:
    """Of memorized samples p_z is 1, e⁻⁵ and e⁻¹⁴, that is 1, 103 and 834,000 tries, and 0."""
    summary = aggregate([by_hand])
    rows = summary.filter(metric="extractable_top_40", split="memorized", intervention="baseline")
    assert rows["k"].to_list() == [1, 10, 100, 1_000, 1_000_000]
    assert rows["value"].to_list() == [0.25, 0.25, 0.25, 0.5, 0.75]
    # the third sample's continuation is hidden by the bypass, and so is the second's
    hidden = summary.filter(metric="hidden_extractable_top_40", split="memorized")
    assert set(hidden["intervention"]) == {"block-00"}
    assert hidden["n"].to_list() == [2] * 5
    assert hidden["value"].to_list() == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert (hidden["low"] <= hidden["value"]).all()
    assert "suffix_log_prob_top_40" not in summary["metric"]  # a mean of -inf says nothing


def test_documents_of_a_category_are_one_cluster(by_hand: ModelTables) -> None:
    alone = aggregate([by_hand]).filter(task="quiz", intervention="baseline", metric="acc")
    category = pl.when(pl.col("doc_id") < 2).then(pl.lit("easy")).otherwise(pl.lit("hard"))
    model = replace(by_hand, documents=by_hand.documents.with_columns(category=category))
    summary = aggregate([model])
    together = summary.filter(task="quiz", intervention="baseline", metric="acc")
    assert together["value"][0] == alone["value"][0] == 0.75
    assert together["low"][0] < alone["low"][0]
    found = summary.filter(metric="acc_by_category").select("task", "category", "value", "n")
    assert found.rows() == [("quiz", "easy", 1.0, 2), ("quiz", "hard", 0.5, 2)]
    assert not aggregate([by_hand]).filter(metric="acc_by_category").height
