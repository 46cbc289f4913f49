"""The stock client against the hub; the faults are tried in tests/workflow/test_hub.py."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.hub.population import PICKLE_ONLY, PYTHIA, SHARDED
from tests.hub.server import Fault, Hub

ROOT = Path(__file__).parents[2]
HF = str(Path(sys.executable).parent / "hf")
MODEL = "EleutherAI/pythia-70m"
COMMIT = PYTHIA[MODEL][0]

WITHOUT_XET = {"HF_HUB_DISABLE_XET": "1"}
"""What the stock client has to be told; the pipeline tells itself."""


def hf(
    hub: Hub, home: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HF, *arguments],
        env={**os.environ, **hub.environment(home), **WITHOUT_XET, **environment},
        capture_output=True,
        text=True,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def snapshot(home: Path, name: str, commit: str, kind: str = "models") -> dict[str, bytes]:
    return content(home / "hub" / f"{kind}--{name.replace('/', '--')}" / "snapshots" / commit)


def ask(
    hub: Hub,
    path: str,
    method: str = "GET",
    body: str | None = None,
    patience: float = 10,
    **headers: str,
) -> tuple[int, HTTPMessage, bytes]:
    """One request on a connection of its own, that waits for so many seconds."""
    connection = HTTPConnection(urlsplit(hub.url).netloc, timeout=patience)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def test_a_sharded_model_arrives_whole(hub: Hub, tmp_path: Path) -> None:
    commit = PYTHIA[SHARDED][0]
    done = hf(hub, tmp_path, "download", SHARDED, "--revision", commit)
    assert done.returncode == 0, done.stderr
    arrived = snapshot(tmp_path, SHARDED, commit)
    assert arrived == hub.model(SHARDED).files(commit)
    assert {"model-00001-of-00002.safetensors", "tokenizer.json"} < set(arrived)
    assert not any(request.authorized for request in hub.log)


def test_a_body_that_is_cut_is_resumed(hub: Hub, tmp_path: Path) -> None:
    chunk = 10 << 20  # what the client writes at a time: of a smaller file it keeps nothing
    files = {"large.bin": random.Random(0).randbytes(chunk + 100)}
    commit = hub.model("mini/large").add(files)
    hub.faults.append(Fault("xet-bridge.*large.bin", "truncate", after=chunk + 50))
    done = hf(hub, tmp_path, "download", "mini/large", "large.bin", "--revision", commit)
    assert done.returncode == 0, done.stderr
    first, second = hub.requests("xet-bridge.*large.bin", "GET")
    assert (first.range, first.status, first.fault) == (None, 200, "truncate")
    assert (second.range, second.status, second.fault) == (f"bytes={chunk}-", 206, None)
    assert snapshot(tmp_path, "mini/large", commit) == files


@pytest.mark.parametrize(
    ("path", "status", "where"),
    [("config.json", 307, "/api/resolve-cache/models/"), ("model.safetensors", 302, "xet-bridge")],
)
def test_files_are_redirected_as_on_the_real_hub(
    hub: Hub, path: str, status: int, where: str
) -> None:
    for method in ("HEAD", "GET"):
        got, headers, body = ask(hub, f"/{MODEL}/resolve/{COMMIT}/{path}", method)
        assert (got, body) == (status, b"")
        assert where in headers["Location"]
        assert headers["X-Repo-Commit"] == COMMIT
        assert ("X-Linked-ETag" in headers) == ("X-Xet-Hash" in headers) == (status == 302)
    if status == 302:
        assert urlsplit(headers["Location"]).hostname != urlsplit(hub.url).hostname
    assert ask(hub, urlsplit(headers["Location"]).path)[2] == hub.model(MODEL).files()[path]


@pytest.mark.slow
def test_the_command_runs_another_with_a_hub_of_its_own(tmp_path: Path) -> None:
    shell = f"{HF} download mini/pickle-only && exit 3"
    done = subprocess.run(
        [sys.executable, "-m", "tests.hub", "--home", str(tmp_path), "sh", "-c", shell],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3, done.stderr
    assert re.search(r"1 ×  200 GET  /api/models/mini/pickle-only/revision/main\n", done.stderr)
    assert re.search(r"\n  \d\d requests\n", done.stderr)
    (arrived,) = (tmp_path / "hub/models--mini--pickle-only/snapshots").iterdir()
    assert (arrived / "pytorch_model.bin").exists()
    assert not (arrived / "model.safetensors").exists()


def test_what_a_test_changes_is_undone(populated_hub: Hub) -> None:
    with populated_hub.kept() as hub:
        hub.model(MODEL).add({"config.json": b"{}"})
        hub.model("mini/new").add({})
        hub.files["/new"] = b""
        hub.faults.append(Fault("", "html", times=None))
        ask(hub, "/new")
    assert populated_hub.model(MODEL).resolve("main") == COMMIT
    assert "mini/new" not in populated_hub.models
    assert PICKLE_ONLY in populated_hub.models
    assert "/new" not in populated_hub.files
    assert (populated_hub.faults, populated_hub.log) == ([], [])


def test_nothing_is_left_of_a_hub() -> None:
    threads = set(threading.enumerate())
    with Hub() as hub:
        hub.files["/file"] = b"content"
        hub.faults.append(Fault("/file", "stall", seconds=600))
        with pytest.raises(TimeoutError):
            ask(hub, "/file", patience=0.3)
        idle = HTTPConnection(urlsplit(hub.url).netloc, timeout=10)
        idle.request("GET", "/file")
        assert idle.getresponse().read() == b"content"
    idle.close()
    assert set(threading.enumerate()) <= threads
    with pytest.raises(ConnectionRefusedError):
        ask(hub, "/file")
