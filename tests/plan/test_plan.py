"""The plan before the work: its arithmetic, and that it comes whatever the network does."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import sweep
from pipeline.interventions.trie import build_trie
from pipeline.measure.schema import Edited
from pipeline.plan import downloads, shapes, table
from pipeline.plan.calibration import Device, matrix_rate, this_device
from pipeline.plan.effort import (
    FORK_SHARE,
    Task,
    benchmark_effort,
    generation_effort,
    interventions_of,
    memorization_effort,
    memory,
    seconds,
    share,
    tasks_of,
    training_tokens,
)
from pipeline.plan.shapes import LADDER, Shape, shape_of_config, shape_of_size
from pipeline.plan.table import Outlook, outlook
from pipeline.plan.words import amount, duration
from pipeline.study.composition import check, compose, load
from pipeline.study.schema import Study
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError
from tests.hub.population import populate
from tests.hub.server import Hub
from tests.hub.study import ROOT, copy_project

HEADLESS = Shape(n_blocks=8, width=48, vocabulary=0, n_heads=4, tied=True)
"""Its only work is that of its blocks."""


class Steady(Device):
    """A device whose rate is a nice number."""

    def rate(self, width: int, dtype: str) -> float:
        return 1e9 if dtype == "float16" and self.kind == "cpu" else 1e11

    def training_rate(self, width: int) -> float:
        return 1e11


@dataclass
class Stages:
    """What the plan asks of a Dag, of a study that is not in force."""

    stages: dict[str, Stage]
    stale: frozenset[str]
    declared: tuple[str, ...]


GROUPS = {
    "check": "study", "corpus": "corpus", "samples": "families", "datasets": "datasets",
    "checkpoint": "models", "memorization": "models", "benchmarks": "models",
    "generations": "models", "aggregate": "study", "figures": "study", "report": "study",
}  # fmt: skip


def stages_of(study: Study, done: tuple[str, ...] = ()) -> Stages:
    made = {}
    for group, section in GROUPS.items():
        for key in [study.study] if section == "study" else getattr(study, section):
            made[f"{group}@{key}"] = Stage(f"{group}@{key}", (), ())
    return Stages(made, frozenset(set(made) - set(done)), tuple(GROUPS))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and nothing in the cache."""

    def forgotten(*_: object, **__: object) -> None:
        raise CachedRepoTreeNotFoundError("nothing")

    monkeypatch.setattr(table, "online", lambda: False)
    monkeypatch.setattr(downloads, "get_cached_repo_tree", forgotten)
    monkeypatch.setattr(shapes, "try_to_load_from_cache", lambda *_, **__: None)


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    """The studies as they are written, and no data."""
    conf = ROOT / "pipeline/conf"
    made = {name: compose({"study": name}, conf, tmp_path / f"{name}.yaml") for name in
            ("tiny", "small", "paper")}  # fmt: skip
    monkeypatch.chdir(tmp_path)
    return made


def planned(study: Study, done: tuple[str, ...] = (), kind: str = "cpu") -> Outlook:
    device = Steady(kind, "a device", 30_000_000_000, 1)
    return outlook(study, stages_of(study, done), device)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------ arithmetic


def test_block_evaluations_are_those_of_the_plan() -> None:
    swept = build_trie(sweep(8), 8)
    effort = memorization_effort(HEADLESS, 3, 10, 6, sweep(8))
    block = HEADLESS.block_flops(15)
    forks = FORK_SHARE * (swept.branches - 1)
    assert effort.forced == pytest.approx(3 * 15 * block * (swept.block_evaluations + forks))
    assert effort.decoded == pytest.approx(3 * 5 * block * 8 * (len(sweep(8)) - 1))


def test_what_is_not_decoded_costs_nothing_beyond_the_pass() -> None:
    every, some, none = (
        memorization_effort(HEADLESS, 8, 10, 6, sweep(8), decoded) for decoded in (None, 2, 0)
    )
    assert every.forced == some.forced == none.forced
    assert (some.decoded, none.decoded) == (pytest.approx(every.decoded / 4), 0)


def test_interventions_count_as_the_study_lists_them(studies: dict[str, Study]) -> None:
    tiny = studies["tiny"].model_dump()
    more = check(
        tiny | {"interventions": [*tiny["interventions"], {"blocks": "heads", "edit": "heads"}]}
    )
    assert len(interventions_of(studies["tiny"], HEADLESS)) == 13
    assert len(interventions_of(more, HEADLESS)) == 13 + 8 * 4
    with pytest.raises(InputError, match="random 9 blocks"):
        interventions_of(
            studies["paper"].model_copy(update={"interventions": [Edited(blocks="random", k=9)]}),
            HEADLESS,
        )


def test_operations_are_those_that_the_engine_does(neox: PreTrainedModel) -> None:
    tokens = torch.randint(0, 61, (16, 24), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        complete(neox, tokens, 8, sweep(5))
    config = neox.config
    # its MLP is twice as wide as the model, where usual ones are four times: a third less
    shape = shape_of_config(config.to_dict())
    effort = memorization_effort(shape, 16, 16, 8, sweep(5))
    heads = 16 * (6 * 8 + 5 * 7) * shape.head_flops
    blocks = (effort.flops - heads) * 16 / 24 + heads
    assert counter.get_total_flops() == pytest.approx(blocks, rel=0.3)


def test_benchmarks_count_documents_examples_and_predictions() -> None:
    swept = build_trie(sweep(8), 8)
    once = swept.block_evaluations + FORK_SHARE * (swept.branches - 1)
    task = Task(documents=10, read=20, wanted=5, row=20)
    read = once * 10 * 20 * HEADLESS.block_flops(20)
    assert benchmark_effort(HEADLESS, [task, task], 0, sweep(8)).forced == pytest.approx(2 * read)
    assert benchmark_effort(HEADLESS, [task], 1, sweep(8)).forced > 2 * read
    head = Shape(8, 48, 100, 4, tied=True)
    more = benchmark_effort(head, [task], 0, sweep(8)).forced - read
    assert more == pytest.approx(swept.branches * 10 * 5 * 2 * 48 * 100)


def test_a_limit_shortens_tasks_but_those_with_few_documents(studies: dict[str, Study]) -> None:
    documents = [task.documents for task in tasks_of(studies["small"])]
    assert documents == [200, 200, 200, 200, 8]
    assert sum(task.documents for task in tasks_of(studies["paper"])) > 19_000
    assert [task.documents for task in tasks_of(studies["tiny"])] == [512, 512, 512, 512, 128]


def test_depths_on_one_block_count_once() -> None:
    shape = Shape(4, 8, 10, 2, tied=True)
    assert generation_effort(shape, 3, [0, 0.1, 1], 5).tokens == (1 + 2) * 3 * 2 * 5


def test_training_reads_the_world_and_what_is_planted(studies: dict[str, Study]) -> None:
    tiny = studies["tiny"]
    model = next(iter(tiny.models.values()))
    assert training_tokens(tiny, model) == 400_000 + 64 * 7136
    for step, tokens in ((0, 0), (100, 100 * 24 * 64), (10**6, 400_000 + 64 * 7136)):
        stopped = model.model_copy(update={"run": "a", "step": step})
        assert training_tokens(tiny, stopped) == tokens


@pytest.mark.parametrize(("blocks", "width", "heads"), LADDER)
def test_a_size_tells_the_shape(blocks: int, width: int, heads: int) -> None:
    for tied in (True, False):
        billions = Shape(blocks, width, 50_304, heads, tied).parameters / 1e9 * 1.03
        found = shape_of_size(billions, tied)
        assert (found.n_blocks, found.width, found.n_heads) == (blocks, width, heads)


def test_every_model_of_the_studies_has_about_its_size(studies: dict[str, Study]) -> None:
    for study in (studies["small"], studies["paper"]):
        for model in study.models.values():
            tied = model.family != "pythia"
            shape = shape_of_size(model.billions, tied)
            assert shape.parameters / 1e9 == pytest.approx(model.billions, rel=0.05)


def test_time_grows_with_the_work_and_falls_with_the_rate() -> None:
    device = Steady("cpu", "", 0, 1)
    shape = Shape(6, 512, 50_304, 8, tied=False)
    one, two = (memorization_effort(shape, n, 32, 32, sweep(6)) for n in (10, 20))
    assert seconds(two, shape, "float32", device) == pytest.approx(
        2 * seconds(one, shape, "float32", device)
    )
    assert seconds(one, shape, "float16", device) > 50 * seconds(one, shape, "float32", device)


def test_shares_lie_between_those_that_were_measured() -> None:
    table = ((64, 0.4), (256, 0.8))
    assert [share(table, width) for width in (1, 64, 128, 256, 5120)] == pytest.approx(
        [0.4, 0.4, 0.6, 0.8, 0.8]
    )


def test_memory_holds_weights_and_keys() -> None:
    shape = Shape(36, 5120, 50_688, 40, tied=False)
    assert memory(shape, "float16", "cuda", None) == pytest.approx(26e9, rel=0.05)
    assert memory(shape, "float16", "cpu", None) > memory(shape, "float16", "cpu", 1000) > 23e9


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "unknown"),
        (0, "0 B"),
        (100, "100 B"),
        (1234, "1.23 kB"),
        (999_900, "1 MB"),
        (2.5e18, "2.5 EB"),
    ],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value, "B") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "unknown"),
        (5, "5 s"),
        (89, "89 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (864_000, "10 days"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


# ------------------------------------------------------------------------------ whole plans


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["small", "paper"])
def test_without_a_network_sizes_are_estimated_or_unknown(
    studies: dict[str, Study], name: str
) -> None:
    made = planned(studies[name])
    rows = {row.stage: row for row in made.rows}
    billions = sum(model.billions for model in studies[name].models.values())
    fetched = sum(row.fetch.missing for row in made.rows)
    assert 2e9 * billions < fetched < 4e9 * billions
    assert str(rows["datasets"].fetch) == "unknown"
    assert all(str(row.fetch).startswith("~") for key, row in rows.items() if "checkpoint" in key)
    assert all(row.seconds > 0 and row.state == "to do" for row in made.rows)
    text = str(made)
    assert "The hub was not asked" in text
    # half precision is slow on this CPU
    assert ("float32 under evaluation" in text) == (name == "paper")
    assert "\x1b" not in text
    assert "…" not in text


@pytest.mark.usefixtures("alone")
def test_what_is_done_costs_nothing(studies: dict[str, Study]) -> None:
    tiny = studies["tiny"]
    done = ("corpus@tiny", "checkpoint@tiny-neo-8", "memorization@tiny-neo-8")
    before, after = planned(tiny), planned(tiny, done)
    states = {row.stage: row.state for row in after.rows}
    assert states["memorization tiny-neo-8"] == "done"
    assert states["memorization tiny-neo-12"] == "to do"
    assert sum(r.seconds for r in after.rows) < sum(r.seconds for r in before.rows)
    assert f"{len(after.rows) - 3} of {len(after.rows)} to do" in str(after)


@pytest.mark.usefixtures("alone")
def test_a_model_that_does_not_fit_is_told(
    studies: dict[str, Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.plan.table.shutil.disk_usage", lambda _: SimpleNamespace(free=10**12)
    )
    assert "TOO LITTLE" not in str(planned(studies["paper"], kind="cuda"))
    small = Steady("cuda", "a small GPU", 8_000_000_000, 1)
    made = outlook(studies["paper"], stages_of(studies["paper"]), small)  # type: ignore[arg-type]
    assert "for pythia-12b, the largest, of 8 GB free: TOO LITTLE" in str(made)


@pytest.mark.usefixtures("alone")
def test_the_tiny_study_takes_what_it_took(studies: dict[str, Study]) -> None:
    """CPU seconds of one thread of an EPYC, whose products of this width run at 70 GFLOP/s."""

    class Epyc(Steady):
        def rate(self, width: int, dtype: str) -> float:
            return 7e10

    took = {
        "memorization tiny-pythia-8": 14.84, "memorization tiny-pythia-12": 27.14,
        "memorization tiny-neo-8": 8.21, "memorization tiny-neo-12": 16.66,
        "benchmarks tiny-pythia-8": 26.54, "benchmarks tiny-pythia-12": 44.24,
        "benchmarks tiny-neo-8": 25.23, "benchmarks tiny-neo-12": 43.43,
    }  # fmt: skip
    epyc = Epyc("cpu", "an EPYC", 10**10, 1)
    tiny = studies["tiny"]
    made = outlook(tiny, stages_of(tiny), epyc)  # type: ignore[arg-type]
    for row in made.rows:
        if row.stage in took:
            ratio = (row.seconds - table.START_SECONDS) / took[row.stage]
            assert 0.5 < ratio < 2, row.stage


def test_this_device_is_measured() -> None:
    assert this_device(1).free_bytes > 0
    assert matrix_rate("cpu", 64, "float32", 1) > 1e8
    assert torch.get_num_threads() == 1


# ------------------------------------------------------------------------------ with a hub

ASK = """
import json
import math
import os
from pipeline.workflow.dag import Dag
from pipeline.plan.table import outlook
from pipeline.study.composition import load
rows = outlook(load(), Dag()).rows
print(json.dumps({r.stage: [r.fetch.missing, r.fetch.cached, r.state] for r in rows}))
"""


@pytest.mark.slow
def test_downloads_are_what_the_hub_serves(tmp_path: Path) -> None:

    project = tmp_path / "project"
    project.mkdir()
    with Hub() as hub:
        populate(hub)
        samples = f"{hub.url}/nowhere"
        copy_project(project, samples)
        compose({"study": "small"}, project / "pipeline/conf", project / "params.yaml")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **hub.environment(tmp_path / "home")}

        def python(*arguments: str, **more: str) -> str:
            return subprocess.run(
                [sys.executable, *arguments], cwd=project, env={**environment, **more}, check=True,
                capture_output=True, text=True,
            ).stdout  # fmt: skip

        first = json.loads(python("-c", ASK).splitlines()[-1])
        study = load(project / "params.yaml")
        sources = [family.samples for family in study.families.values()]
        with_samples = {source.control.tokenizer.repo for source in sources}
        for model in study.models.values():
            files = hub.model(model.checkpoint.repo).files(model.checkpoint.commit)
            wanted = {name for name in files if name.endswith((".safetensors", ".json", ".txt"))}
            if (
                model.checkpoint.repo in with_samples
            ):  # each file is counted once, where it is read first
                wanted = {name for name in wanted if name.endswith(".safetensors")}
            missing, cached, _ = first[f"checkpoint {model.name}"]
            assert missing + cached == sum(len(files[name]) for name in wanted)
            # which was asked for the model's shape
            assert cached == (len(files["config.json"]) if "config.json" in wanted else 0)
        documents = hub.dataset("Rowan/hellaswag").files()
        data = [content for path, content in documents.items() if path.endswith(".parquet")]
        assert first["datasets"][0] > sum(map(len, data))
        checked = python("-m", "pipeline", "plan", "--check").splitlines()
        assert any(line.startswith("baber/piqa at 142f6d73: 3 files") for line in checked)
        assert len(checked) == 4 + 1 + 1 + 5 + 2  # models, sequences, documents, tasks, tokenizers
        assert not hub.requests("safetensors|parquet|jsonl")
        python("-m", "dvc", "repro", "--quiet", "checkpoint@small-pythia-160m")
        second = json.loads(python("-c", ASK).splitlines()[-1])
        assert second["checkpoint pythia-160m"][2] == second["check"][2] == "done"
        assert second["checkpoint pythia-410m"][:2] == first["checkpoint pythia-410m"][:2]
        before = len(hub.log)
        python("-c", "from pipeline.workflow.hub import snapshot\n"
               "from pipeline.study.composition import load\n"
               "h = load().model('pythia-410m').checkpoint\n"
               "snapshot(h.repo, h.commit, ['config.json', '*.safetensors'])")  # fmt: skip
        assert len(hub.log) > before
    # the hub is gone: what was asked before is still known, and the plan is quick
    text = python("-m", "pipeline", "plan")
    assert "The hub was not asked" in text
    line = next(each for each in text.splitlines() if each.startswith("checkpoint pythia-410m"))
    assert "partly cached" in line
    assert "done" in next(e for e in text.splitlines() if e.startswith("checkpoint pythia-160m"))
    offline = python("-m", "pipeline", "plan", HF_HUB_OFFLINE="1")
    assert "checkpoint pythia-410m" in offline
