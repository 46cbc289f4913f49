"""The plan before the work: what it lists, and that it comes whatever the network does."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.errors import CachedRepoTreeNotFoundError
from networkx import DiGraph

from pipeline.plan import downloads, table
from pipeline.plan.cost import Costs
from pipeline.plan.downloads import amount
from pipeline.plan.table import duration, plan, rows
from pipeline.study.composition import check, compose, load
from pipeline.study.schema import Study
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError
from pipeline.workflow.shards import operations_a_second
from tests.hub.population import populate
from tests.hub.server import Hub
from tests.hub.study import copy_project
from tests.project import Project, composed

GROUPS = {
    "check": "study", "corpus": "corpus", "samples": "families", "datasets": "datasets",
    "checkpoint": "models", "memorization": "models", "benchmarks": "models",
    "generations": "models", "aggregate": "study", "figures": "study", "report": "study",
}  # fmt: skip


def planned(study, done=(), on=None):
    """The plan of a study that is not in force: its rows by their stages, and all as text."""
    stages = {}
    for group, section in GROUPS.items():
        for key in [study.study] if section == "study" else getattr(study, section):
            stages[f"{group}@{key}"] = Stage(f"{group}@{key}", (), ())
    changed = set(stages) - set(done)
    stale = frozenset(changed - {f"check@{study.study}"})  # as `Dag` leaves out the first stages
    edges = {("corpus@tiny", f"checkpoint@{key}") for key in study.models}
    edges |= {(f"checkpoint@{key}", f"benchmarks@{key}") for key in study.models}
    dag: Any = SimpleNamespace(
        stages=stages, stale=stale, changed=changed, declared=tuple(GROUPS), graph=DiGraph(edges)
    )
    made = rows(study, dag, Costs(study), "cpu")
    return {row.stage: row for row in made}, plan(study, dag, on)


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    """Studies as they are written, with no data, no network, and nothing in the cache."""

    def forgotten(*_: object, **__: object) -> None:
        raise CachedRepoTreeNotFoundError("nothing")

    made = {name: check(composed(name)) for name in ("tiny", "small", "paper")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "online", lambda: False)
    monkeypatch.setattr(downloads, "get_cached_repo_tree", forgotten)
    monkeypatch.setattr("pipeline.plan.cost.try_to_load_from_cache", lambda *_, **__: None)
    return made


def test_amounts_and_durations():
    amounts = {0: "0 B", 1234: "1.23 kB", 999_900: "1 MB", 2.5e18: "2.5 EB"}
    assert {value: amount(value, "B") for value in amounts} == amounts
    durations = {5: "5 s", 600: "10 min", 7200: "2 h", 864_000: "10 days"}
    assert {seconds: duration(seconds) for seconds in durations} == durations


@pytest.mark.parametrize("name", ["small", "paper"])
def test_without_a_network_sizes_are_estimated_or_unknown(studies, name):
    made, text = planned(studies[name])
    billions = sum(model.billions for model in studies[name].models.values())
    assert 2e9 * billions < sum(row.missing for row in made.values()) < 4e9 * billions
    cells = {stage: row.cells for stage, row in made.items()}
    assert cells["datasets"][1] == "unknown"
    assert all(each[1].startswith("~") for stage, each in cells.items() if "checkpoint" in stage)
    assert all(row.seconds > 0 for row in made.values())
    assert {each[-1] for each in cells.values()} == {"to do"}
    assert "The hub was not asked" in text


def test_what_is_done_costs_nothing(studies):
    tiny = studies["tiny"]
    done = ("check@tiny", "corpus@tiny", "checkpoint@tiny-neo-8", "memorization@tiny-neo-8")
    (before, _), (after, text) = planned(tiny), planned(tiny, done)
    states = {stage: row.cells[-1] for stage, row in after.items()}
    assert states["memorization tiny-neo-8"] == states["check"] == "done"
    assert states["memorization tiny-neo-12"] == "to do"
    assert sum(r.seconds for r in after.values()) < sum(r.seconds for r in before.values())
    assert f"{len(after) - 4} of {len(after)} to do" in text


def test_a_family_and_a_model_may_have_one_key(studies):
    values = studies["tiny"].model_dump()
    values["families"]["tiny-neo-8"] = values["families"].pop("tiny-gpt-neo")
    made, _ = planned(check(values))
    assert made["samples gpt-neo"].seconds == made["samples pythia"].seconds
    assert made["memorization tiny-neo-8"].operations > 0


def test_a_plan_for_another_machine(studies):
    paper = studies["paper"]
    found = {
        on: re.search(r"^time +([\d.]+) (min|h|days) (.*), if", planned(paper, on=on)[1], re.M)
        for on in ("a100", "h100", "slurm")
    }
    hours = {
        on: float(each[1]) * {"min": 1 / 60, "h": 1, "days": 24}[each[2]]
        for on, each in found.items()
        if each
    }
    assert hours["slurm"] < hours["h100"] < hours["a100"] < 16 * hours["h100"]
    text = planned(paper, on="slurm")[1]
    assert "with all jobs side by side, on an a100 each" in text
    assert re.search(r"^h100 +17 TFLOP/s +99 TFLOP/s +80 GB$", text, re.M)
    assert "of 80 GB free" in text
    costs, model = Costs(paper), next(iter(paper.models.values()))
    operations = costs.operations("benchmarks", model)
    faster = costs.seconds("benchmarks", model, "a100") - costs.seconds("benchmarks", model, "h100")
    assert paper.evaluation[model.family].dtype == "float32"
    assert faster == pytest.approx(operations * (1 / 5e12 - 1 / 1.7e13))
    assert operations_a_second("h100", "bfloat16", 1) == 9.9e13
    with pytest.raises(InputError, match=r"--on[\s\S]*a100, h100, slurm"):
        planned(paper, on="tpu")


def test_a_model_that_does_not_fit_is_told(studies, monkeypatch):
    free = SimpleNamespace(free=10**12)
    monkeypatch.setattr("pipeline.workflow.files.shutil.disk_usage", lambda _: free)
    for room, told in ((80e9, False), (8e9, True)):
        monkeypatch.setattr(table, "free_bytes", lambda _, room=room: room)
        assert ("TOO LITTLE" in planned(studies["paper"])[1]) == told
    expected = "for pythia-12b, the largest, of 8 GB free: TOO LITTLE"
    assert expected in planned(studies["paper"])[1]


ASK = """
import json
from pipeline.workflow.dag import Dag
from pipeline.plan.cost import Costs
from pipeline.plan.table import rows
from pipeline.study.composition import load
study = load()
made = rows(study, Dag(), Costs(study), "cpu")
print(json.dumps({r.stage: [r.missing, r.cached, r.cells[-1]] for r in made}))
"""


@pytest.mark.slow
def test_downloads_are_what_the_hub_serves(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    with Hub() as hub:
        populate(hub)
        samples = f"{hub.url}/nowhere"
        copy_project(project, samples)
        compose({"study": "small"}, project / "pipeline/conf", project / "params.yaml")

        def python(*arguments: str, **more: str) -> str:
            one = Project(project, {**hub.environment(tmp_path / "home"), **more})
            return one.command(sys.executable, *arguments).stdout

        first = json.loads(python("-c", ASK).splitlines()[-1])
        study = load(project / "params.yaml")
        for model in study.models.values():
            files = hub.model(model.checkpoint.repo).files(model.checkpoint.commit)
            wanted = {name for name in files if name.endswith((".safetensors", ".json", ".txt"))}
            missing, cached, _ = first[f"checkpoint {model.name}"]
            assert missing + cached == sum(len(files[name]) for name in wanted)
            assert cached == 0
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
