"""What an earlier table has is taken from there if nothing that determines it has changed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML
from transformers import PreTrainedModel

from pipeline.checkpoints.manifest import write_manifest
from pipeline.interventions.interventions import Intervention, sweep
from pipeline.measure import memorization, metrics
from pipeline.measure.reuse import KEYS, extended, keys
from pipeline.samples.schemas import SAMPLES
from pipeline.stages import registry
from pipeline.study.composition import load, write
from pipeline.workflow import digest, tables
from pipeline.workflow.tables import Column, Schema
from tests.measure.cases import random_samples
from tests.project import ROOT, copy_files

ONE: Schema = {"intervention": Column(pl.String, ""), "value": Column(pl.Int64, "")}
OTHER: Schema = {"intervention": Column(pl.String, ""), "text": Column(pl.String, "")}


def _rows(interventions: Sequence[Intervention], made: str) -> list[pl.DataFrame]:
    """Two rows of each intervention in one table, one in the other."""
    names = [each.name for each in interventions]
    twice = [name for name in names for _ in range(2)]
    values = [10 * sum(each.blocks) + i for each in interventions for i in range(2)]
    return [
        pl.DataFrame({"intervention": twice, "value": values}),
        pl.DataFrame({"intervention": names, "text": [made] * len(names)}),
    ]


class Stage:
    """A stage with two tables, which notes what it computes."""

    def __init__(self, folder: Path) -> None:
        self.files = {folder / "one.parquet": ONE, folder / "other.parquet": OTHER}
        self.cached: dict[Path, Path] = {}
        self.computed: list[str] = []
        self.samples = ""

    def run(self, interventions: Sequence[Intervention], made: str = "") -> list[pl.DataFrame]:
        def compute(missing: Sequence[Intervention]) -> list[pl.DataFrame]:
            self.computed = [each.name for each in missing]
            return _rows(missing, made)

        self.computed = []
        wanted = keys(interventions, {}, self.samples)
        frames = extended(interventions, wanted, self.files, self.cached.get, compute)
        for frame, (path, schema) in zip(frames, self.files.items(), strict=True):
            tables.write(frame, path, schema, {KEYS: wanted})
        return frames


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_only_what_is_new_is_computed_and_the_order_is_that_of_the_list(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    every = sweep(4)
    stage.run(every[:3], "before")
    assert stage.computed == [each.name for each in every[:3]]
    assert capsys.readouterr().out == ""
    shuffled = [every[4], every[0], every[2], every[3]]
    one, other = stage.run(shuffled, "after")
    assert stage.computed == [every[4].name, every[3].name]
    assert capsys.readouterr().out == "2 of 4 interventions are taken from the earlier table\n"
    assert one.equals(_rows(shuffled, "")[0])
    assert other["intervention"].to_list() == [each.name for each in shuffled]
    assert other["text"].to_list() == ["after", "before", "before", "after"]
    stage.run(every[:2])
    assert stage.computed == [every[1].name]


def test_a_name_a_group_and_a_draw_determine_nothing(stage: Stage) -> None:
    stage.run([Intervention("block-03", {3: "zero"}, group="each")], "before")
    same = [
        Intervention("random-1-draw-2.zero", {3: "zero"}, group="random", draw=2),
        Intervention("blocks-03.zero", {3: "zero"}),
    ]
    _, other = stage.run(same, "after")
    assert stage.computed == []
    assert other.rows() == [(each.name, "before") for each in same]


def test_edits_heads_and_seed_determine_all(stage: Stage) -> None:
    for other in (
        Intervention("x", {1: "identity"}),
        Intervention("x", {1: "zero"}),
        Intervention("x", {2: "zero"}),
        Intervention("x", {1: "heads"}, heads=(0,)),
        Intervention("x", {1: "heads"}, heads=(1,)),
        Intervention("x", {1: "noise"}, seed=1),
        Intervention("x", {1: "noise"}, seed=2),
    ):
        stage.run([other])
        assert stage.computed == ["x"], other


def test_samples_determine_what_takes_a_mean_over_them(stage: Stage) -> None:
    both = [Intervention("x", {1: "zero"}), Intervention("y", {1: "mean"})]
    stage.run(both)
    stage.samples = "others"
    stage.run(both)
    assert stage.computed == ["y"]


def test_what_dvc_has_kept_is_found(stage: Stage, tmp_path: Path) -> None:
    stage.run(sweep(2))
    for path in stage.files:
        stage.cached[path] = path.rename(tmp_path / f"{path.stem}-in-the-cache")
    stage.run(sweep(2))
    assert stage.computed == []


def _unlink(stage: Stage) -> None:
    list(stage.files)[1].unlink()


def _damage(stage: Stage) -> None:
    for path in stage.files:
        content = bytearray(path.read_bytes())
        content[20:40] = bytes(20)
        path.write_bytes(content)


@pytest.mark.parametrize("lose", [_unlink, _damage])
def test_one_of_the_tables_lost_or_damaged_is_as_good_as_none(
    stage: Stage, lose: Callable[[Stage], None]
) -> None:
    stage.run(sweep(2))
    lose(stage)
    stage.run(sweep(2))
    assert len(stage.computed) == 3


# ------------------------------------------------------------------------------ the stage itself


N = 6


@pytest.fixture
def project(
    neox: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Run the two stages on a study of one model; what the engine was asked for comes back."""
    values = YAML(typ="safe").load(ROOT / "params.yaml")
    model = values["models"]["tiny-pythia-8"]
    values["evaluation"]["pythia"]["below_floor"] = "warn"
    copy_files(tmp_path)
    data = tmp_path / "data/tiny"
    folder = data / "checkpoints" / model["name"]
    folder.mkdir(parents=True)
    facts = {"name": model["name"], "family": "pythia", "seed": 0, "origin": {}}
    write_manifest(folder, neox, tokens=61, **facts)
    _write_samples(data / "samples/pythia.parquet", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.stages.memorization.load", lambda *_: (neox, None))
    asked = list[str]()
    engine = memorization.complete

    def noted(model: Any, tokens: Any, length: int, interventions: Any, **rest: Any) -> Any:
        if len(tokens) == N:  # the trial of the baseline has fewer
            asked.extend(each.name for each in interventions)
        return engine(model, tokens, length, interventions, **rest)

    monkeypatch.setattr(memorization, "complete", noted)

    def run(lines: Sequence[dict[str, Any]], **evaluation: Any) -> list[str]:
        asked.clear()
        values["interventions"] = list(lines)
        values["evaluation"]["pythia"] |= evaluation
        write(values, tmp_path / "params.yaml")
        digest.forget()
        registry.run(load(), "interventions@tiny-pythia-8")
        registry.run(load(), "memorization@tiny-pythia-8")
        return list(asked)

    return run


def _write_samples(path: Path, seed: int) -> None:
    made = random_samples(N, 7, 5, ["memorized", "control"] * (N // 2), seed)
    tables.write(made, path, SAMPLES, {})


EACH = [{"blocks": "each"}]
MORE = [{"blocks": [1, 3]}, *EACH, {"blocks": "last", "k": 2}]
TABLE = Path("data/tiny/memorization/tiny-pythia-8.parquet")


def test_a_line_more_computes_that_line(project: Callable[..., list[str]]) -> None:
    assert len(project(EACH)) == 6
    assert project(MORE) == ["blocks-01+03", "last-2"]
    joined = tables.read(TABLE, metrics.MEMORIZATION)
    determined_by = tables.provenance(TABLE)
    TABLE.unlink()
    assert len(project(MORE)) == 8
    whole = tables.read(TABLE, metrics.MEMORIZATION)
    assert tables.provenance(TABLE) == determined_by
    floats = [name for name, dtype in whole.schema.items() if dtype.is_float()]
    assert joined.drop(floats).equals(whole.drop(floats))
    for name in floats:
        assert joined[name].to_list() == pytest.approx(whole[name].to_list(), abs=1e-4)
    assert project(EACH) == []
    assert tables.read(TABLE, metrics.MEMORIZATION).height == 6 * N


def test_the_cost_of_a_part_is_noted(project: Callable[..., list[str]]) -> None:
    project(EACH)
    TABLE.unlink()
    registry.run(load(), "memorization_part@tiny-pythia-8-1-of-2")
    sidecar = json.loads(Path("data/tiny/cost/memorization/tiny-pythia-8.1-of-2.json").read_text())
    assert sidecar["computed"] == 6
    assert not TABLE.exists()


def _sample() -> None:
    _write_samples(Path("data/tiny/samples/pythia.parquet"), 1)


def _checkpoint() -> None:
    path = Path("data/tiny/checkpoints/tiny-pythia-8/manifest.json")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"files": {"model.safetensors": "0" * 64}}))


def _code(file: str) -> Callable[[], None]:
    def change() -> None:
        with Path("pipeline", file).open("a") as code:
            code.write("\nCHANGED = True\n")

    return change


@pytest.mark.parametrize(
    ("change", "how", "computed"),
    [
        (_sample, {}, 6),
        (_checkpoint, {}, 6),
        (_code("interventions/completion.py"), {}, 6),
        (_code("measure/benchmarks.py"), {}, 0),  # which the stage does not run
        (lambda: None, {"dtype": "bfloat16"}, 6),
        (lambda: None, {"baseline_floor": 0.1}, 6),
    ],
)
def test_what_has_changed_is_computed_again(
    project: Callable[..., list[str]],
    change: Callable[[], None],
    how: dict[str, Any],
    computed: int,
) -> None:
    project(EACH)
    change()
    assert len(project(EACH, **how)) == computed
