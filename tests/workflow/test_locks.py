"""What a killed run leaves: in DVC's list of locks, and of dvc.lock."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from dvc.lock import make_lock

from pipeline.study.audit import DVC_CONFIG
from pipeline.workflow.dag import _set_aside_damaged_lock
from pipeline.workflow.errors import InputError
from pipeline.workflow.locks import held, opened
from tests.project import python, started


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / ".dvc/config").write_text(DVC_CONFIG)
    return tmp_path


def _note(folder, pid, command):
    entry = {"pid": pid, "cmd": command}
    locks = {"write": {str(folder / "out"): entry}, "read": {str(folder / "params.yaml"): [entry]}}
    (folder / ".dvc/tmp/rwlock").write_text(json.dumps(locks))


def test_an_id_that_another_process_has_now_is_no_lock(repository):
    _note(repository, os.getppid(), "dvc --wait-for-lock repro --single-item samples@tiny")
    with held(repository / "params.yaml"):
        pass
    assert not any(json.loads((repository / ".dvc/tmp/rwlock").read_text()).values())


@pytest.mark.parametrize("cut", ["", '{"write": {'])
def test_a_list_that_was_cut_short_holds_nothing(repository, cut):
    (repository / ".dvc/tmp/rwlock").write_text(cut)
    with held(repository / "params.yaml"):
        assert "params.yaml" in (repository / ".dvc/tmp/rwlock").read_text()


def test_a_whole_list_is_left_to_dvc(repository):
    """DVC gives up after 3 s where it cannot lock the list, which only what mends it may do."""
    _note(repository, os.getpid(), "dvc repro")
    with ThreadPoolExecutor(1) as thread, make_lock(str(repository / ".dvc/tmp/rwlock.lock")):
        assert thread.submit(opened).result(30)


@pytest.mark.parametrize("program", ["-m dvc", "a folder/dvc"])
def test_a_process_that_runs_the_command_holds_its_lock(repository, program):
    """DVC notes the path of the program, which may have spaces."""
    script, place = "import time; time.sleep(600)", repository / "a folder"
    place.mkdir()
    (place / "dvc").write_text(script)
    run = ["-c", script] if program == "-m dvc" else [str(place / "dvc")]
    with started(*run, "repro", "--single-item", "x") as busy:
        _note(repository, busy.pid, f"{place / 'dvc'} repro --single-item x")
        with pytest.raises(InputError, match=f"PID {busy.pid}"), held(repository / "params.yaml"):
            pass


def test_a_study_is_not_replaced_while_another_run_is_at_work(tmp_path):
    script = "import time; from pipeline.workflow.locks import take_turn; take_turn()"
    script += "; print(1, flush=True); time.sleep(600)"
    with started("-c", script, cwd=tmp_path) as busy:
        assert busy.stdout.readline() == "1\n"
        done = python("-m", "pipeline", "study", "tiny", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert f"a run is at work in it: process {busy.pid}" in done.stderr
    assert not (tmp_path / "params.yaml").exists()


WHOLE = b"schema: '2.0'\nstages:\n  check@mini:\n    cmd: python -m pipeline stage\n"


@pytest.mark.parametrize("cut", [b"", WHOLE[:30], WHOLE[:-1], b"schema: '2.0\n", b"\xff\n", b"1\n"])
def test_a_lock_file_that_was_cut_short_is_set_aside(tmp_path, cut):
    lock = tmp_path / "dvc.lock"
    lock.write_bytes(cut)
    _set_aside_damaged_lock(lock)
    assert not lock.exists()
    assert (tmp_path / "dvc.lock.damaged").read_bytes() == cut


def test_a_whole_lock_file_stays(tmp_path):
    lock = tmp_path / "dvc.lock"
    _set_aside_damaged_lock(lock)  # none
    lock.write_bytes(WHOLE)
    _set_aside_damaged_lock(lock)
    assert lock.read_bytes() == WHOLE
    assert [path.name for path in tmp_path.iterdir()] == ["dvc.lock"]
