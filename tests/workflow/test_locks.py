"""What a killed run leaves in DVC's list of locks, when another process has its id."""

import json
import os
import subprocess
import sys

import pytest

from pipeline.workflow.errors import InputError
from pipeline.workflow.locks import held


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--quiet"], check=True)
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


def test_a_process_that_runs_the_command_holds_its_lock(repository):
    script = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script, "repro", "--single-item", "x"]) as busy:
        _note(repository, busy.pid, "dvc repro --single-item x")
        with pytest.raises(InputError, match=f"PID {busy.pid}"), held(repository / "params.yaml"):
            pass
        busy.kill()
