"""The stock client against the hub, and every fault as it looks on the wire."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection, HTTPMessage, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from tests.hub.population import DATASETS, GPT_NEO_SAMPLES, PICKLE_ONLY, PYTHIA, SHARDED
from tests.hub.server import CLIMBING_CONTENT, CLIMBING_PATH, Fault, Hub

ROOT = Path(__file__).parents[2]
HF = str(Path(sys.executable).parent / "hf")
MODEL = "EleutherAI/pythia-70m"
COMMIT = PYTHIA[MODEL][0]
WEIGHTS = f"/xet-bridge/models/{MODEL}/{COMMIT}/model.safetensors"
LINK = f"/{MODEL}/resolve/{COMMIT}/model.safetensors"
TREE = f"/api/models/{MODEL}/tree/{COMMIT}"


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


# ---------------------------------------------------------------------- the stock client


def test_a_sharded_model_arrives_whole(hub: Hub, tmp_path: Path) -> None:
    commit = PYTHIA[SHARDED][0]
    done = hf(hub, tmp_path, "download", SHARDED, "--revision", commit)
    assert done.returncode == 0, done.stderr
    arrived = snapshot(tmp_path, SHARDED, commit)
    assert arrived == hub.model(SHARDED).files(commit)
    assert {"model-00001-of-00002.safetensors", "tokenizer.json"} < set(arrived)
    assert not any(request.authorized for request in hub.log)


def test_a_data_set_arrives_whole_and_serves_offline(hub: Hub, tmp_path: Path) -> None:
    name = "EleutherAI/pythia-memorized-evals"
    commit = DATASETS[name][0]
    command = ("download", name, "--type", "dataset", "--revision", commit)
    done = hf(hub, tmp_path, *command, HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    arrived = snapshot(tmp_path, name, commit, "datasets")
    assert arrived == hub.dataset(name).files(commit)
    assert "data/duped.12b-00001-of-00002.parquet" in arrived
    assert all(request.authorized for request in hub.requests("/resolve/"))
    hub.log.clear()
    again = hf(hub, tmp_path, *command, HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert commit in again.stdout
    assert hub.log == []


def test_a_body_that_is_cut_is_resumed(hub: Hub, tmp_path: Path) -> None:
    chunk = 10 << 20  # what the client writes at a time: of a smaller file it keeps nothing
    files = {"large.bin": random.Random(0).randbytes(chunk + 100)}
    commit = hub.model("mini/large").add(files)
    hub.faults.append(Fault("large.bin", "truncate", after=chunk + 50))
    done = hf(hub, tmp_path, "download", "mini/large", "large.bin", "--revision", commit)
    assert done.returncode == 0, done.stderr
    first, second = hub.requests("large.bin", "GET")
    assert (first.range, first.status, first.fault) == (None, 200, "truncate")
    assert (second.range, second.status, second.fault) == (f"bytes={chunk}-", 206, None)
    assert snapshot(tmp_path, "mini/large", commit) == files


def test_a_branch_moves_and_a_commit_stays(hub: Hub, tmp_path: Path) -> None:
    repository = hub.model("mini/moving")
    old = repository.add({"config.json": b"old", "only-old.txt": b""})
    assert hf(hub, tmp_path, "download", "mini/moving").returncode == 0
    new = repository.add({"config.json": b"new"})
    assert hf(hub, tmp_path, "download", "mini/moving").returncode == 0
    assert hf(hub, tmp_path / "b", "download", "mini/moving", "--revision", old).returncode == 0
    assert snapshot(tmp_path, "mini/moving", old) == {"config.json": b"old", "only-old.txt": b""}
    assert snapshot(tmp_path, "mini/moving", new) == {"config.json": b"new"}
    assert snapshot(tmp_path / "b", "mini/moving", old)["config.json"] == b"old"


def test_a_listing_comes_in_pages(tmp_path: Path) -> None:
    files = {f"{folder}/deep/{i}.txt": b"%d" % i for folder in "ab" for i in range(4)}
    with Hub(page=3) as hub:
        commit = hub.dataset("mini/pages").add(files)
        done = hf(hub, tmp_path, "download", "mini/pages", "--type", "dataset")
        assert done.returncode == 0, done.stderr
        assert len(hub.requests("/tree/")) == 4  # 8 files and 4 folders
    assert snapshot(tmp_path, "mini/pages", commit, "datasets") == files


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mini/none"], "Model 'mini/none' not found"),
        ([MODEL, "--revision", "0" * 40], "Revision not found"),
        ([MODEL, "none.txt", "--revision", COMMIT], f"File not found in model '{MODEL}'"),
    ],
)
def test_what_is_not_there_is_the_clients_own_error(
    hub: Hub, tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = hf(hub, tmp_path, "download", *arguments)
    assert done.returncode == 1
    assert said in done.stderr, done.stderr


def test_the_client_finds_a_corrupt_copy_when_asked_to(hub: Hub, tmp_path: Path) -> None:
    hub.faults.append(Fault("model.safetensors", "corrupt"))
    assert hf(hub, tmp_path, "download", MODEL, "--revision", COMMIT).returncode == 0
    done = hf(hub, tmp_path, "cache", "verify", MODEL, "--revision", COMMIT)
    assert done.returncode == 1
    file = hub.model(MODEL).commits[COMMIT]["model.safetensors"]
    assert "model.safetensors" in done.stderr + done.stdout
    assert file.sha256 in done.stderr + done.stdout
    assert "config.json" not in done.stderr + done.stdout


OFFICIAL = {
    ("allenai/ai2_arc", "ARC-Easy", "test"): ["id", "question", "choices", "answerKey"],
    ("Rowan/hellaswag", "default", "validation"): [
        *("ind", "activity_label", "ctx_a", "ctx_b", "ctx", "endings"),
        *("source_id", "split", "split_type", "label"),
    ],
    ("EleutherAI/lambada_openai", "default", "test"): ["text"],
    ("baber/piqa", "default", "validation"): ["goal", "sol1", "sol2", "label"],
    ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"): ["page"],
}
"""Repository, configuration and split that the official tasks read: its columns."""

LOAD = """
import json, sys
from datasets import load_dataset

for name, config, split, commit in json.loads(sys.argv[1]):
    data = load_dataset(name, config, split=split, revision=commit)
    print(json.dumps([data.column_names, data.to_list()]))
"""


def _official_rows(hub: Hub, name: str, config: str, split: str) -> list[dict[str, Any]]:
    files = hub.dataset(name).files()
    if name == "EleutherAI/lambada_openai":
        return [json.loads(line) for line in files["data/lambada_test_en.jsonl"].splitlines()]
    folder = "data" if config == "default" else config
    file = files[f"{folder}/{split}-00000-of-00001.parquet"]
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(file)).to_pylist()
    return rows


def test_the_benchmarks_load_as_data_sets(hub: Hub, tmp_path: Path) -> None:
    wanted = [[*which, DATASETS[which[0]][0]] for which in OFFICIAL]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(wanted)],
        env={**os.environ, **hub.environment(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loaded = [json.loads(line) for line in done.stdout.splitlines()]
    for (which, columns), (names, rows) in zip(OFFICIAL.items(), loaded, strict=True):
        assert names == columns, which
        assert rows == _official_rows(hub, *which), which
        assert len(rows) == 8
        assert hub.requests(re.escape(f"/datasets/{which[0]}/resolve/{DATASETS[which[0]][0]}/"))


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


# ---------------------------------------------------------------------- on the wire


def test_plain_files_in_whole_and_in_part(hub: Hub) -> None:
    path = f"{GPT_NEO_SAMPLES}/train_suffix.npy"
    data = hub.files[path]
    status, headers, body = ask(hub, path)
    assert (status, body) == (200, data)
    assert headers["Content-Length"] == str(len(data))
    assert ask(hub, path, "HEAD")[0::2] == (200, b"")
    status, headers, body = ask(hub, path, Range="bytes=10-19")
    assert (status, body) == (206, data[10:20])
    assert headers["Content-Range"] == f"bytes 10-19/{len(data)}"
    assert ask(hub, path, Range=f"bytes={len(data)}-")[0] == 416
    assert ask(hub, path + ".none")[0] == 404


def test_paths_are_told_apart(hub: Hub) -> None:
    status, _, body = ask(
        hub,
        f"/api/datasets/allenai/ai2_arc/paths-info/{DATASETS['allenai/ai2_arc'][0]}",
        "POST",
        json.dumps({"paths": ["ARC-Easy", "README.md", "none"]}),
        **{"Content-Type": "application/json"},
    )
    assert status == 200
    found = {entry["path"]: entry["type"] for entry in json.loads(body)}
    assert found == {"ARC-Easy": "directory", "README.md": "file"}


def test_a_status_with_its_headers(hub: Hub) -> None:
    hub.faults.append(Fault(WEIGHTS, "status", status=429, headers={"Retry-After": "7"}))
    status, headers, _ = ask(hub, WEIGHTS)
    assert (status, headers["Retry-After"]) == (429, "7")
    assert ask(hub, WEIGHTS)[0] == 200
    assert [(r.status, r.fault) for r in hub.log] == [(429, "status"), (200, None)]


def test_a_truncated_body(hub: Hub) -> None:
    hub.faults.append(Fault(WEIGHTS, "truncate", after=10, times=None))
    for _ in range(3):
        with pytest.raises(IncompleteRead) as caught:
            ask(hub, WEIGHTS)
        assert caught.value.partial == hub.model(MODEL).files()["model.safetensors"][:10]


@pytest.mark.parametrize("after", [None, 0, 10])
def test_a_reset(hub: Hub, after: int | None) -> None:
    hub.faults.append(Fault(WEIGHTS, "reset", after=after))
    with pytest.raises(ConnectionResetError):
        ask(hub, WEIGHTS)
    assert hub.log[0].status == (None if after is None else 200)
    assert ask(hub, WEIGHTS)[0] == 200


@pytest.mark.parametrize("after", [None, 10])
def test_a_stall(hub: Hub, after: int | None) -> None:
    hub.faults.append(Fault(WEIGHTS, "stall", after=after, seconds=1))
    with pytest.raises(TimeoutError):
        ask(hub, WEIGHTS, patience=0.3)


def test_a_corrupt_body(hub: Hub) -> None:
    hub.faults.append(Fault(WEIGHTS, "corrupt"))
    right = hub.model(MODEL).commits[COMMIT]["model.safetensors"]
    _, headers, wrong = ask(hub, WEIGHTS)
    assert headers["ETag"] == headers["X-Linked-ETag"] == f'"{right.sha256}"'
    assert wrong[:-1] == right.data[:-1]
    assert len(wrong) == len(right.data)
    assert wrong != right.data


@pytest.mark.parametrize("extra", [-7, 7])
def test_another_length(hub: Hub, extra: int) -> None:
    hub.faults.append(Fault(WEIGHTS, "wrong_length", "HEAD|GET", times=2, extra=extra))
    length = len(hub.model(MODEL).files()["model.safetensors"]) + extra
    for method in ("HEAD", "GET"):
        _, headers, body = ask(hub, WEIGHTS, method)
        assert headers["Content-Length"] == headers["X-Linked-Size"] == str(length)
    assert len(body) == length
    (listed,) = [e for e in json.loads(ask(hub, TREE)[2]) if e["path"] == "model.safetensors"]
    assert listed["size"] == length - extra


def test_no_etag(hub: Hub) -> None:
    hub.faults.append(Fault(WEIGHTS, "no_etag", "HEAD"))
    assert not any("etag" in name.lower() for name in ask(hub, WEIGHTS, "HEAD")[1])
    assert "X-Linked-ETag" in ask(hub, WEIGHTS, "HEAD")[1]


@pytest.mark.parametrize("path", [WEIGHTS, TREE])
def test_a_page_of_html(hub: Hub, path: str) -> None:
    hub.faults.append(Fault(path, "html"))
    status, headers, body = ask(hub, path)
    assert (status, headers["Content-Type"]) == (200, "text/html")
    assert body.startswith(b"<!DOCTYPE html>")


def test_a_listing_that_climbs(hub: Hub) -> None:
    hub.faults.append(Fault(TREE, "climb"))
    assert CLIMBING_PATH in {entry["path"] for entry in json.loads(ask(hub, TREE)[2])}
    assert CLIMBING_PATH not in {entry["path"] for entry in json.loads(ask(hub, TREE)[2])}
    assert ask(hub, f"/{MODEL}/resolve/{COMMIT}/{CLIMBING_PATH}")[2] == CLIMBING_CONTENT


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
    start = time.monotonic()
    with Hub() as hub:
        hub.files["/file"] = b"content"
        hub.faults.append(Fault("/file", "stall", seconds=600))
        with pytest.raises(TimeoutError):
            ask(hub, "/file", patience=0.3)
        idle = HTTPConnection(urlsplit(hub.url).netloc, timeout=10)
        idle.request("GET", "/file")
        assert idle.getresponse().read() == b"content"
    assert time.monotonic() - start < 10
    idle.close()
    assert set(threading.enumerate()) <= threads
    with pytest.raises(ConnectionRefusedError):
        ask(hub, "/file")
