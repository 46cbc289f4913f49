"""The figure of extraction and its sentence, against the tables."""

import polars as pl

from pipeline.report.markup import plain
from pipeline.report.plots import extraction
from pipeline.report.plots.extraction import extractions

COLUMNS = {
    **{"model": "m", "family": "f", "task": "memorization", "split": "memorized"},
    **{"edit": "identity", "group": "each"},
}


def row(model: str, block: int | None, metric: str, value: float, **more: object) -> dict:
    """A row of a summary: one block bypassed, or none."""
    name = "baseline" if block is None else f"block-{block:02d}"
    kind = {"edit": None, "group": "baseline"} if block is None else {}
    where = {"model": model, "intervention": name, "block": block, "k": None, "n": 20}
    ends = {"low": value - 0.01, "high": value + 0.01}
    listed = {"blocks": [] if block is None else [block]}
    return {**COLUMNS, **kind, **where, **ends, **listed, "metric": metric, "value": value, **more}


def made(models: dict[str, float]) -> pl.DataFrame:
    """Twelve blocks a model; of what the bypass of block b hides, so much and b% more is out."""
    rows = []
    for name, out in models.items():
        for block in (None, *range(12)):
            depth = 0 if block is None else block + 1
            # of the last quarter, 9 to 11, the median exact match is that of block 11
            exact = {None: 1.0, 9: 0.1, 10: 0.9, 11: 0.5}.get(block, depth / 100)
            rows.append(row(name, block, "exact_match", exact))
            for k in (1, 1000):
                rows.append(row(name, block, extraction.TOP_40, depth / 20, k=k))
                if block is not None:
                    value = out + block / 100
                    rows.append(row(name, block, f"hidden_{extraction.TOP_40}", value, k=k))
    kinds = {"block": pl.UInt16, "k": pl.UInt32, "blocks": pl.List(pl.UInt16)}
    return pl.DataFrame(rows, schema_overrides=kinds)


def test_the_sentence_is_the_tables() -> None:
    for models, told in (
        ({"m": 0.5}, "3 blocks that hide 10 or more), 59–61% (intervals 58–62%) "),
        ({"a": 0.5, "b": 0.1}, "6 blocks of 2 models that hide 10 or more), 19–61% (intervals 18–"),
    ):
        [plot] = extractions(made(models))
        words = plot.words()
        assert f"(20 at each of {told}" in plain(words["finding"])
        assert " come out within 1,000 tries" in plain(words["finding"])
        assert plain(words["caption"]).count("1 and 11") == len(models)


def test_a_late_block_that_hides_nothing_leaves_the_others() -> None:
    hides = (pl.col("metric") == f"hidden_{extraction.TOP_40}") & (pl.col("block") == 11)
    rows = made({"m": 0.5}).filter(~hides.fill_null(value=False))
    [plot] = extractions(rows)
    assert "(20 at each of 2 blocks that hide 10 or more), 59–60%" in plain(plot.words()["finding"])
    [plot] = extractions(rows.with_columns(n=9))
    said = plain(plot.words()["finding"])
    assert "hides 10 or more memorized samples from greedy decoding: too few to say" in said
    assert not list(extractions(rows.filter(metric="exact_match"))), "no figure without tries"
