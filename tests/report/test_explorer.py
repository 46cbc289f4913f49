"""What can be chosen on the page."""

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.aggregate import aggregate
from pipeline.analysis.evidence import evidence
from pipeline.analysis.kept import kept
from pipeline.interventions.interventions import Group
from pipeline.report.explorer import choices
from tests.analysis import synthetic


def test_models_edits_and_blocks(summary: pl.DataFrame, study: synthetic.Study) -> None:
    shares = kept(evidence(study.models), pooled=False)
    assert choices(summary.filter(pl.col("group") != "each"), shares) == []  # no single blocks
    found = choices(summary, shares)
    assert [(each["name"], each["family"]) for each in found] == views.models(summary)
    for each in found:
        rows = views.memorization(summary, "exact_match").filter(model=each["name"])
        single = views.single_blocks(rows)
        blocks = dict(single.select("block", "intervention").iter_rows())
        assert each["edits"] == {"identity": blocks}
        values = dict(single.select("block", "value").iter_rows())
        lowest = min(value for block, value in values.items() if block > 0)
        assert each["start"] == max(b for b, v in values.items() if v == lowest and b > 0)
        assert each["said"]["identity"][3].startswith("exact match ")
        assert f"→ {values[3]:.0%}" in each["said"]["identity"][3]
        assert len(each["quartiles"]) == len(blocks)
        assert each["quartiles"][0] == "quartile-1"
        assert each["quartiles"][max(blocks)] == "quartile-4"
        assert each["drawn"] == each["name"]


def test_each_edit_of_a_block_says_what_it_leaves() -> None:
    groups = [Group("each", "zero"), Group("each", "noise", draws=3), Group("each")]
    [model] = synthetic.study(models={"m": ("pythia", 4)}, per_copies=8, groups=groups).models
    summary = aggregate([model])
    [found] = choices(summary, kept(evidence([model]), pooled=False))
    rows = views.memorization(summary, "exact_match").filter(block=2)
    for edit, value in rows.select("edit", "value").iter_rows():
        if edit != "noise":
            assert f"→ {value:.0%}" in found["said"][edit][2]
    assert list(found["edits"]) == ["identity", "zero", "noise"], (
        "the bypass is what is shown first"
    )
    drawn = rows.filter(intervention="block-02.noise-draw-1")["value"][0]
    assert found["edits"]["noise"][2] == "block-02.noise-draw-1", "the draw that the evidence has"
    assert f"→ {drawn:.0%}" in found["said"]["noise"][2]
