"""What fails, is killed or is wrong leaves what was finished, and is taken up again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest
from ruamel.yaml import YAML

from tests.dag.conftest import Project
from tests.dag.test_agreement import ALL, SUMMARY


def _note(project: Project, folder: str, address: str) -> None:
    (project.root / folder).mkdir(exist_ok=True)
    (project.root / folder / address).touch()


def test_a_failing_stage_leaves_its_finished_siblings(fresh: Project) -> None:
    _note(fresh, "fail", "memorization@mini-p-1_4b")
    failed = fresh.snakemake(check=False)
    assert failed.returncode != 0
    assert "was told to fail" in failed.stdout + failed.stderr, "the log of a failed job is shown"
    ran = fresh.ran()
    assert set(ran) == ALL - SUMMARY
    (fresh.root / "fail/memorization@mini-p-1_4b").unlink()
    fresh.snakemake()
    assert set(fresh.ran()) == {"memorization@mini-p-1_4b"} | SUMMARY
    fresh.assert_idle()


@pytest.mark.parametrize("victim", ["stage", "dvc", "snakemake"])
def test_killed_and_resumed(fresh: Project, victim: str) -> None:
    slow = "benchmarks@mini-n-2_7b"
    _note(fresh, "slow", slow)
    with subprocess.Popen(
        ["snakemake", "--cores", "8"],
        cwd=fresh.root,
        env=fresh.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        log = fresh.root / "ran.txt"
        expected = len(ALL - SUMMARY)
        _wait(lambda: log.exists() and len(log.read_text().split()) == expected)
        time.sleep(3)  # the other stages write what they made into dvc.lock
        if victim == "snakemake":
            os.killpg(running.pid, signal.SIGKILL)
        else:
            pattern = (
                f"repro --single-item {slow}" if victim == "dvc" else "pipeline benchmarks n-2.7b"
            )
            for pid in _processes(pattern, running.pid):
                os.kill(pid, signal.SIGKILL)
        if victim == "dvc":  # its orphan would sleep on
            for pid in _processes("pipeline benchmarks n-2.7b", running.pid):
                os.kill(pid, signal.SIGKILL)
        assert running.wait(timeout=60) != 0
    assert slow in fresh.ran()
    if victim == "snakemake":
        fresh.snakemake("--unlock")
    fresh.snakemake()
    assert set(fresh.ran()) == {slow} | SUMMARY
    fresh.assert_idle()


@pytest.mark.parametrize("engine", ["snakemake", "dvc"])
def test_bad_params_are_refused_before_any_job(fresh: Project, engine: str) -> None:
    old = "  pythia:\n    dtype: float32"
    fresh.replace("params.yaml", old, "  pythia:\n    dtype: float31\n    dytpe: 1")
    fresh.replace("params.yaml", "statistics:\n  seed: 0", "statistics:\n  seed: -1")
    (fresh.root / "pipeline/__main__.py").write_text(
        "from pipeline.errors import InputError\nfrom pipeline.params import load\n"
        "try:\n    load()\nexcept InputError as error:\n    raise SystemExit(str(error))\n"
        "open('ran.txt', 'a').write('a stage ran')\n"
    )
    refused = (
        fresh.snakemake(check=False) if engine == "snakemake" else fresh.dvc("repro", check=False)
    )
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert not fresh.ran()
    for part in ("pythia.dtype", "float31", "pythia.dytpe", "statistics.seed", "remedy"):
        assert part in said


def _wait(until: object, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not until():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the stages did not get that far"
        time.sleep(0.1)


def _processes(pattern: str, session: int) -> list[int]:
    """Processes of one session whose command line holds `pattern`, shells apart."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = " ".join(process.info["cmdline"] or [])
        if pattern in arguments and not arguments.startswith("/bin/"):
            with suppress(ProcessLookupError):
                if os.getsid(process.pid) == session:
                    found.append(process.pid)
    return found


@pytest.mark.parametrize("lines", [0, 30])
def test_a_lock_file_cut_short_by_a_kill_costs_nothing(project: Project, lines: int) -> None:
    lock = project.root / "dvc.lock"
    whole = lock.read_bytes()
    left = sum(map(len, whole.splitlines(keepends=True)[:lines])) + (5 if lines else 0)
    lock.write_bytes(whole[:left])
    project.snakemake()
    assert not project.ran()
    yaml = YAML(typ="safe")
    assert yaml.load(lock) == yaml.load(whole.decode())
    assert (project.root / "dvc.lock.damaged").read_bytes() == whole[:left]
    project.assert_idle()
