"""What fails, is killed or is wrong leaves what was finished, and is taken up again."""

import os
import re
import signal
import sys
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tests.dag.conftest import ENGINES, Project, wait
from tests.dag.test_agreement import PARAMS, SUMMARY

pytestmark = pytest.mark.slow


def _note(project: Project, folder: str, address: str) -> None:
    (project.root / folder).mkdir(exist_ok=True)
    (project.root / folder / address).touch()


def _unfinished(project: Project) -> list[str]:
    """The outputs of jobs that Snakemake has begun and not ended."""
    notes = (project.root / ".snakemake/incomplete").iterdir()
    return [urlsafe_b64decode(note.name).decode() for note in notes]


def _change_one_model(project: Project) -> set[str]:
    """Change the recipe of one model; returns the stages that this makes run, but for `SUMMARY`."""
    value, stale = PARAMS["models.mini-p-1_4b.checkpoint.seed"]
    project.set("models.mini-p-1_4b.checkpoint.seed", value)
    return stale - SUMMARY


def test_a_failing_stage_leaves_its_finished_siblings(project: Project) -> None:
    before = _change_one_model(project)
    _note(project, "fail", "memorization@mini-p-1_4b")
    said = project.run("snakemake", check=False)
    assert "was told to fail" in said, "the log of a failed job is shown"
    assert set(project.ran()) == before
    (project.root / "fail/memorization@mini-p-1_4b").unlink()
    project.snakemake()
    assert set(project.ran()) == {"memorization@mini-p-1_4b"} | SUMMARY
    project.assert_idle()


@pytest.mark.parametrize("victim", ["stage", "dvc", "snakemake"])
def test_killed_and_resumed(project: Project, victim: str) -> None:
    before, slow = _change_one_model(project), "benchmarks@mini-p-1_4b"
    _note(project, "slow", slow)
    lock = project.root / "dvc.lock"
    old = _entries(lock)
    with project.start(*ENGINES["snakemake"]) as running:
        log = project.root / "ran.txt"
        wait(lambda: log.exists() and set(log.read_text().split()) == before)
        wait(lambda: all(_entries(lock).get(each) != old[each] for each in before - {slow}))
        wait(lambda: all("benchmarks" in each for each in _unfinished(project)))
        if victim == "snakemake":
            os.killpg(running.pid, signal.SIGKILL)
        else:
            if victim == "dvc":
                _kill(running.pid, lambda each: slow in each.cmdline())
            # the stage, or what would sleep on as an orphan
            _kill(running.pid, lambda each: each.environ().get("DVC_STAGE") == slow)
        assert running.wait(timeout=300) != 0
    assert slow in project.ran()
    project.snakemake()
    # where the kill cut dvc.lock short, all comes from the run cache but an output that persists
    cut = (project.root / "dvc.lock.damaged").exists()
    assert set(project.ran()) == {slow} | SUMMARY | ({"check@mini"} if cut else set())
    project.assert_idle()


def _entries(lock: Path) -> dict[str, object]:
    """The stages in dvc.lock; none while it is being written."""
    with suppress(YAMLError, TypeError, KeyError):
        return dict(YAML(typ="safe").load(lock)["stages"])
    return {}


def test_killed_between_the_notes_of_dvc_and_of_snakemake(project: Project) -> None:
    """A whole output that Snakemake noted as incomplete keeps nothing from running."""
    notes = project.root / ".snakemake/incomplete"
    notes.mkdir(exist_ok=True)
    noted = urlsafe_b64encode(b"data/mini/memorization/n-2.7b.parquet").decode()
    (notes / noted).write_text('{"external_jobid": null}')
    assert "Nothing to be done" in project.planned()
    lost = project.root / "reports/mini/index.html"
    lost.unlink()
    project.snakemake()
    assert lost.exists()
    project.assert_idle()


def _kill(session: int, chosen: Callable[[psutil.Process], bool]) -> None:
    """Kill the chosen processes of a session; there is at least one."""
    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and chosen(process):
                process.kill()
                killed += 1
    assert killed


def test_a_lock_file_cut_short_by_a_kill_costs_nothing(project: Project) -> None:
    lock = project.root / "dvc.lock"
    whole = lock.read_bytes()
    left = sum(map(len, whole.splitlines(keepends=True)[:30])) + 5
    lock.write_bytes(whole[:left])
    done = project.snakemake()
    assert "dvc.lock was cut short by a killed run. It is now dvc.lock.damaged" in done.stderr
    assert set(project.ran()) <= {"check@mini"}  # DVC does not restore an output that persists
    yaml = YAML(typ="safe")
    assert yaml.load(lock) == yaml.load(whole.decode())
    assert (project.root / "dvc.lock.damaged").read_bytes() == whole[:left]
    project.assert_idle()


JOB = "from pipeline.workflow.dag import Dag; print('begins', flush=True); Dag(decide=False)"
"""What a job on a cluster's node does before its stage."""


def test_a_list_of_locks_cut_short_by_a_kill_stops_nobody(project: Project) -> None:
    listed = project.root / ".dvc/tmp/rwlock"
    for command in (ENGINES["snakemake"], [sys.executable, "-c", JOB]):
        listed.write_text('{"write": {"data/mini')
        assert "Unable to read RWLock-file" in project.dvc("repro", check=False).stderr
        project.command(*command)
        assert "up to date" in project.dvc("repro").stdout
    assert not project.ran()


def test_a_job_waits_while_another_writes_the_lock_file(project: Project) -> None:
    """DVC writes it in place; half of it is no reason to fail, nor to set it aside."""
    lock = project.root / "dvc.lock"
    whole = lock.read_bytes()
    with ExitStack() as busy:
        busy.enter_context(Repo(project.root).lock)
        lock.write_bytes(whole[: len(whole) // 2])
        with project.start(sys.executable, "-c", JOB) as job:
            wait(lambda: "begins" in (project.root / "said.txt").read_text())
            time.sleep(3)
            assert job.poll() is None
            lock.write_bytes(whole)
            busy.close()
    assert job.returncode == 0
    assert lock.read_bytes() == whole


def test_an_unpacked_archive_is_refused(fresh: Project) -> None:
    for gone in (".git", ".dvc"):
        kept = (fresh.root / gone).rename(fresh.root.parent / "kept")
        for command in (["snakemake", "-n"], [sys.executable, "-c", COMPOSE]):
            assert "clone it with git" in fresh.said(*command, check=False)
        kept.rename(fresh.root / gone)


COMPOSE = """
from pipeline.workflow.locks import held
from pipeline.workflow.files import PARAMS
from pipeline.study.composition import compose
with held(PARAMS):
    compose({"study": "other"})
"""


@pytest.mark.parametrize(
    ("first", "second"), [("snakemake", "dvc"), ("dvc", "snakemake"), ("snakemake", "snakemake")]
)
def test_a_second_run_beside_the_first(project: Project, first: str, second: str) -> None:
    """It waits, or is refused and told who is in the way; the first one is not disturbed."""
    _change_one_model(project)
    slow = "checkpoint@mini-p-1_4b"
    short_lock = "Unable to acquire lock. Most likely another DVC process is running"
    _note(project, "slow", slow)
    with project.start(*ENGINES[first]) as running:
        log = project.root / "ran.txt"
        wait(lambda: log.exists() and slow in log.read_text().split())
        said = short_lock
        while short_lock in said:  # DVC gives up after 3 s and cannot say who holds it: once more
            beside = project.command(*ENGINES[second], check=False)
            assert running.poll() is None, "the first one still runs"
            assert beside.returncode != 0
            said = beside.stdout + beside.stderr
            assert second == "dvc" or short_lock not in said
        if first == second == "snakemake":
            assert f"a run is at work in it: process {running.pid} on " in said
        else:
            assert re.search(
                r"(checkpoints/p-1.4b|tasks|params.yaml|study.json)' is busy, it is being blocked",
                said,
            )
            assert re.search(r"\(PID \d+\): \S*dvc.* repro", said)
        assert "Traceback" not in said
        assert "rwlock" not in said or second == "dvc"
        # nor is the study of the first one exchanged
        before = (project.root / "params.yaml").read_text()
        for other in (
            [*ENGINES["snakemake"], "--config", "study=other"],
            [sys.executable, "-c", COMPOSE],
        ):
            refused = project.command(*other, check=False)
            assert refused.returncode != 0
            said = refused.stdout + refused.stderr
            assert re.search(r"at work in it: process|blocked by: \(PID", said)
            assert (project.root / "params.yaml").read_text() == before
        _kill(running.pid, lambda each: each.environ().get("DVC_STAGE") == slow)
        running.wait(timeout=300)
    project.snakemake()
    assert set(project.ran()) >= {slow}
    project.assert_idle()


def test_snakemake_starts_no_monitor_thread(fresh: Project) -> None:
    """It asks the hub for listings itself: see `progress.disable_monitor`."""
    with (fresh.root / "Snakefile").open("a") as file:
        file.write(
            "\nimport threading\n"
            "from datasets.utils import tqdm\n"
            "list(tqdm(range(3)))\n"
            'print("threads:", [type(each).__name__ for each in threading.enumerate()])\n'
        )
    done = fresh.snakemake("--dry-run")
    [told] = [line for line in done.stdout.splitlines() if line.startswith("threads:")]
    assert "TMonitor" not in told
