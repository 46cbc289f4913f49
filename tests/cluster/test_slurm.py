"""The stub study goes through a real SLURM, by profiles/slurm as it stands."""

import json
import re
import shutil
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.plan.scheduling import Needs
from pipeline.stages.registry import STAGES
from pipeline.study.composition import check
from pipeline.study.loops import write_loops
from tests.cluster.conftest import GPUS, listed
from tests.dag.conftest import Project, stub_project
from tests.plan.test_cost import PUBLISHED, published_samples

HUNGRY = "checkpoint@mini-n-2_7b"  # others go on meanwhile
LARGE = "n-2.7b"
EVALUATE = {"memorization", "tokens", "benchmarks", "generations", "divergence"}
# The profile asks seldom, as a shared scheduler wants it. In vain is worse than late: after each
# question for which no job had ended, the next comes ten seconds later.
QUICKLY = ("--slurm-init-seconds-before-status-checks", "8")
SUBMIT = ("snakemake", "--workflow-profile", "profiles/slurm", *QUICKLY)
LISTED = ("squeue", "--noheader", "--states=all", "--format=%i")


@dataclass(frozen=True)
class Job:
    """One attempt of a stage, as it saw itself."""

    stage: str
    number: str
    memory: int  # MB
    limit: str  # of its time, as scontrol writes it: 1-02:03:00
    device: str | None
    began: float
    ended: float | None

    @property
    def rule(self) -> str:
        return self.stage.partition("@")[0]

    @property
    def minutes(self) -> int:
        days, _, time = self.limit.rpartition("-")
        hours, minutes, _ = time.split(":")
        return int(days or 0) * 1440 + int(hours) * 60 + int(minutes)


@dataclass(frozen=True)
class Run:
    """What one snakemake left behind."""

    project: Project
    output: str
    jobs: list[Job]

    def attempts(self, stage: str) -> list[Job]:
        return sorted((j for j in self.jobs if j.stage == stage), key=lambda job: job.began)


def _jobs(project: Project) -> list[Job]:
    notes = [json.loads(line) for line in (project.root / "jobs.jsonl").read_text().splitlines()]
    ends = {told["number"]: at for event, at, told in notes if event == "ended"}
    return [
        Job(**told, began=at, ended=ends.get(told["number"]))
        for event, at, told in notes
        if event == "began"
    ]


def _make_one_model_large(project: Project) -> None:
    """Published, of 12 billion parameters, with many samples: the stub fetches nothing of it."""
    with project.params() as study:
        (model,) = (each for each in study["models"].values() if each["name"] == LARGE)
        (family,) = (each for each in study["families"].values() if each["name"] == model["family"])
        model["checkpoint"] = {"source": "hub", "billions": 12.0, **PUBLISHED}
        family["samples"] = published_samples(15_000)
        write_loops(study, project.root / "loops.yaml")
    downloads = project.root / "pipeline/plan/downloads.py"
    with downloads.open("a") as module:
        module.write("\n\ndef require_downloads(*_: object) -> None:\n    pass\n")


@pytest.fixture(scope="module")
def run(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = stub_project(tmp_path_factory.mktemp("slurm"))
    main = project.root / "pipeline/__main__.py"
    main.rename(main.with_name("stub_main.py"))
    shutil.copy(Path(__file__).with_name("recording_main.py"), main)
    _make_one_model_large(project)
    project.describe()
    hungry = project.root / "hungry" / HUNGRY
    hungry.parent.mkdir()
    hungry.touch()
    done = project.command(*SUBMIT, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        pytest.fail(f"{said}\n{_errors(project)}", pytrace=False)
    return Run(project, said, _jobs(project))


def _errors(project: Project) -> str:
    """What jobs and stages said of errors; a report of a run shows its end."""
    logs = [
        *project.root.glob("logs/**/*.log"),
        *project.root.glob(".snakemake/slurm_logs/**/*.log"),
    ]
    return "\n".join(
        f"{log.relative_to(project.root)}: {line}"
        for log in sorted(logs, key=lambda log: log.stat().st_mtime)
        for line in log.read_text().splitlines()
        if re.search("ERROR|error: ", line)
    )


def test_every_stage_that_takes_long_is_a_job_of_slurm(run: Run) -> None:
    ran = run.project.ran()
    local = {stage for stage in ran if STAGES[stage.partition("@")[0]].local}
    assert {job.stage for job in run.jobs} == set(ran) - local
    assert len(local) > 2, "what takes seconds waits in no queue"
    assert set(ran.values()) == {1}, "no command ran twice to its end"
    submitted = re.findall(r"submitted with SLURM jobid (\d+)", run.output)
    assert sorted(job.number for job in run.jobs) == sorted(submitted)
    assert {job.number for job in run.jobs} <= set(listed(*LISTED).split())


def test_gpus_are_assigned_to_those_who_evaluate_and_never_twice(run: Run) -> None:
    for job in run.jobs:
        assert (job.device is not None) == (job.rule in EVALUATE), job.stage
    holders = [job for job in run.jobs if job.device is not None]
    assert {job.device for job in holders} == {str(index) for index in range(len(GPUS))}
    together = [
        {first.device, second.device}
        for first, second in combinations(holders, 2)
        if first.began < second.ended and second.began < first.ended
    ]
    assert together, "some run side by side"
    assert all(len(devices) == 2 for devices in together)


def test_memory_and_time_arrive_as_asked(run: Run) -> None:
    values = YAML(typ="safe").load(run.project.root / "params.yaml")
    needs = Needs(check(values), STAGES)
    of_key = {key: model["name"] for key, model in values["models"].items()}
    for job in run.jobs:
        attempt = run.attempts(job.stage).index(job) + 1
        wildcards = {"name": of_key.get(job.stage.partition("@")[2], "")}
        assert job.memory == needs.mem_mb(wildcards, attempt, job.rule), job.stage
        assert job.minutes == needs.runtime(wildcards, attempt, job.rule), job.stage


def test_what_outgrows_its_memory_is_killed_and_asks_for_more(run: Run) -> None:
    first, second = run.attempts(HUNGRY)
    assert first.ended is None
    assert second.ended is not None
    assert second.memory == 1.5 * first.memory
    assert second.minutes == 2 * first.minutes
    logs = run.project.root / ".snakemake/slurm_logs"
    (log,) = logs.rglob(f"{first.number}.log")
    assert "exceeded memory limit" in log.read_text()


def test_both_engines_are_idle_afterwards(run: Run) -> None:
    run.project.ran()
    before = listed(*LISTED)
    assert "Nothing to be done" in run.project.said(*SUBMIT)
    assert listed(*LISTED) == before
    run.project.assert_idle()
