"""The line that an interrupted command says is written whole, once, before the process ends."""

import os
import signal
import threading

import pytest

from pipeline.workflow import interruption
from tests.project import started


def test_who_comes_second_waits_until_the_line_is_written(monkeypatch, capfd):
    """The main thread and the one that stands by are woken by the same signal."""
    began, counted = threading.Event(), threading.Event()

    def line() -> str:
        began.set()
        assert counted.wait(60)
        return "2 of 6 shards are kept"

    monkeypatch.setattr(interruption, "_lines", [line])
    monkeypatch.setattr(interruption, "_told", False)
    first = threading.Thread(target=interruption._tell)
    first.start()
    began.wait()
    threading.Timer(0.1, counted.set).start()
    interruption._tell()
    assert capfd.readouterr().err == "\ninterrupted: 2 of 6 shards are kept\n"
    first.join()


STAGE = """
import time
from pipeline.workflow.interruption import watch
watch()
print("ready", flush=True)
time.sleep(600)
"""
AUDIT = f"""
import os, subprocess, sys
from pipeline.workflow.interruption import saying, watch
watch()
dvc = '"$0" -c "$1"; :'  # leaves the stage to itself if it is killed
with saying(lambda: "finished stages are kept"):
    stage = ["sh", "-c", dvc, sys.executable, {STAGE!r}]
    subprocess.run(stage, env={{**os.environ, "DVC_STAGE": "one@tiny"}})
"""


@pytest.mark.parametrize("group", [False, True], ids=["the audit alone", "all, as Ctrl-C does"])
def test_an_audit_speaks_for_its_stages(tmp_path, group):
    (tmp_path / "pipeline").write_text(AUDIT)  # the name by which a stage knows an audit
    with started(str(tmp_path / "pipeline")) as running:
        assert running.stdout.readline() == "ready\n"
        (os.killpg if group else os.kill)(running.pid, signal.SIGTERM)
        assert running.stderr.read() == "\ninterrupted: finished stages are kept\n"
