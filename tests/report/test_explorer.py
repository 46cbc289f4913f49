"""What can be chosen on the page."""

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import evidence
from pipeline.analysis.kept import kept
from pipeline.report.explorer import choices
from tests.analysis import synthetic


def test_models_edits_and_blocks(summary: pl.DataFrame, study: synthetic.Study) -> None:
    found = choices(summary, kept(evidence(study.models), pooled=False))
    assert [(each["name"], each["family"]) for each in found] == views.models(summary)
    for each in found:
        rows = views.memorization(summary, "exact_match").filter(model=each["name"])
        single = views.single_blocks(rows)
        blocks = dict(single.select("block", "intervention").iter_rows())
        assert each["edits"] == {"identity": blocks}
        values = dict(single.select("block", "value").iter_rows())
        lowest = min(value for block, value in values.items() if block > 0)
        assert each["start"] == max(b for b, v in values.items() if v == lowest and b > 0)
        assert each["said"][3].startswith("exact match ")
        assert f"→ {values[3]:.0%}" in each["said"][3]
        assert len(each["quartiles"]) == len(blocks)
        assert each["quartiles"][0] == "quartile-1"
        assert each["quartiles"][max(blocks)] == "quartile-4"
        assert each["drawn"] == each["name"]


def test_a_model_without_single_blocks_cannot_be_chosen(
    summary: pl.DataFrame, study: synthetic.Study
) -> None:
    assert choices(summary.filter(pl.col("group") != "each"), kept(evidence(study.models))) == []
