"""A whole study of localization in miniature: stages, tables, and a stranger's scorer."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from pipeline.report.localization import SECTION, read_localized
from pipeline.report.markup import template
from pipeline.stages import registry
from pipeline.study.composition import check
from pipeline.study.loops import loops
from pipeline.study.schema import Study
from pipeline.workflow.errors import InputError
from tests.project import ROOT, begun, composed

KEY = "localize-quick-neox"
COLUMNS = ["model", "base", "seed", "truth", "place", "is_truth", "scorer", "score"]


def example() -> str:
    """The scorer that the documentation shows, as a reader would copy it."""
    text = (ROOT / "docs/localization.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?def my_scorer.*?)```", text, re.DOTALL)
    return str(code)


def values() -> dict[str, Any]:
    """The study `localize-quick` with one base of two blocks, few records and few steps."""
    made = copy.deepcopy(composed("localize-quick"))
    made["corpus"]["localize-quick"] |= {
        "vocabulary": 400, "world_tokens": 4000, "records": {1: 10, 8: 4}, "control_records": 6,
        "task_items": 8,
    }  # fmt: skip
    small = {"n_blocks": 2, "batch_rows": 8, "width": 32, "seed": 3, "epochs": 12}
    made["models"] = {KEY: made["models"][KEY]}
    made["models"][KEY]["checkpoint"] |= small
    made["localization"] |= {
        "bases": {"neox": ["neox"]},
        "truths": {
            "mlp": {"part": "mlp", "models": 2},
            "head": {"part": "head"},
            "pretraining-mlp": {"part": "mlp", "pretraining": True},
        },
        "scorers": ["scorers/mine.py:my_scorer"],
    }
    made["localization"]["learning"] |= {"batch_rows": 4, "epochs": 150, "most_rounds": 3}
    return made


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """The study, after the stages of localization."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("localize")
        patch.chdir(folder)
        (folder / "scorers").mkdir()
        (folder / "scorers/mine.py").write_text(example(), encoding="utf-8")
        yield begun(
            folder, values(), "corpus@localize-quick", "samples@localize-quick-base",
            *(f"{group}@{KEY}" for group in ("checkpoint", "planting", "scoring")),
            "localization@localize-quick",
        )  # fmt: skip


def test_the_table_that_outside_checks_rely_on(study):
    found = pl.read_parquet(study.data / "localization.parquet")
    assert found.columns == COLUMNS
    assert found["seed"].dtype.is_integer()
    assert (found["is_truth"].dtype, found["score"].dtype) == (pl.Boolean, pl.Float64)
    assert set(found["seed"]) == {3}
    assert set(found["base"]) == {"neox"}
    assert set(found["truth"]) == {"mlp", "head", "pretraining-mlp"}
    assert found["model"].n_unique() == 4
    assert {"oracle", "random", "scorers/mine.py:my_scorer"} < set(found["scorer"])
    assert not found["score"].is_nan().any()
    oracle = found.filter(scorer="oracle")
    assert (oracle["score"] == oracle["is_truth"].cast(pl.Float64)).all()
    places = found.group_by("model", "scorer").agg(
        pl.len(), pl.col("is_truth").sum(), pl.col("place").n_unique()
    )
    assert set(places["is_truth"]) == {1}
    assert (places["len"] == places["place"]).all()
    assert set(places["len"]) == {2, 4}
    removal = pl.read_parquet(study.data / "removal.parquet")
    assert removal.height == places.height


def test_the_stages_give_the_same_tables_again(study):
    names = [f"{folder}/neox.parquet" for folder in ("scores", "removal")]
    before = [(study.data / name).read_bytes() for name in names]
    weights = sorted((study.data / "planted/neox").glob("*.safetensors"))
    planted = [path.read_bytes() for path in weights]
    registry.run(study, f"planting@{KEY}")
    registry.run(study, f"scoring@{KEY}")
    assert [path.read_bytes() for path in weights] == planted
    assert [(study.data / name).read_bytes() for name in names] == before


def test_a_strangers_scorer_from_the_docs_stands_on_the_page(study):
    assert len(example().strip().splitlines()) < 15
    told = read_localized(study.data)
    assert any("mine.py:my_scorer" in str(row[0]) for row in told["rows"])
    removal = pl.read_parquet(study.data / "removal.parquet")
    assert "scorers/mine.py:my_scorer" in removal["scorer"].to_list()
    deleted = any("mine.py:my_scorer" in str(row[0]) for row in told["deleted_rows"])
    assert deleted == (removal["exact_match"].max() > 0)  # nothing to remove where none recites
    page = template("localization.html.jinja")
    shown = page.render(graded=told, localization=SECTION, located=[])
    assert 'models come from <data value="1">1</data> trained base' in shown


def test_what_dvc_loops_over(study):
    made = loops(study)
    assert made["scorers"] == "scorers"
    assert made["localized"] == {KEY: {"name": "neox", "family": "base"}}
    assert made["tables"]["removal"] == "data/localize-quick/removal.parquet"
    assert loops(study.model_copy(update={"localization": None}))["localized"] == {}


@pytest.mark.usefixtures("study")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"bases": {"neox": ["nobody"]}}, "nobody"),
        ({"truths": {"mlp": {"part": "mlp", "models": 3}}}, "at most 2 each"),
        ({"truths": {"heads": {"part": "head", "spread": 5}}}, "at most 4 each"),
        ({"truths": {"all": {"part": "mlp", "spread": 2, "models": 2}}}, "of all, one model"),
        ({"scorers": ["scorers/none.py:f"]}, "scorers/none.py"),
        ({"scorers": ["scorers/mine.py:f"]}, "scorers/mine.py without f"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(wrong, said):
    made = values()
    made["localization"] |= wrong
    with pytest.raises(InputError, match=re.escape(said)):
        check(made)


def test_bases_differ_in_their_seeds_alone(study):
    made = values()
    other = made["models"][KEY] | {"name": "other"}
    made["models"]["localize-quick-other"] = other
    made["localization"]["bases"] = {"neox": ["neox", "other"]}
    with pytest.raises(InputError, match="differ in their seeds"):
        check(made)
    other["checkpoint"] = other["checkpoint"] | {"seed": 4}
    assert check(made).localized.keys() == {KEY, "localize-quick-other"}
    assert study.localized.keys() == {KEY}
