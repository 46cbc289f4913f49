"""Whatever goes wrong on the way, a snapshot is whole and verified, or there is a clear error."""

import errno
import hashlib
import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from huggingface_hub import constants

from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.hub import Snapshot, commit_of, listing, missing_bytes, select, snapshot
from pipeline.workflow.network import WAITS, unreachable
from tests.hub.population import PICKLE_ONLY, PYTHIA, SHARDED
from tests.hub.server import CLIMBING_CONTENT, CLIMBING_PATH, CONTENT, Fault, Hub
from tests.project import no_file_larger_than, refused

MODEL = "EleutherAI/pythia-70m"
COMMIT = PYTHIA[MODEL][0]
WANTED = ("config.json", "*.safetensors", "tokenizer*.json")
NAMES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
WEIGHTS = CONTENT + ".*/model.safetensors$"
CONFIG = CONTENT + ".*/config.json$"
TREE = "/tree/"
SECRET = "hf_abcdefghijklmnopqrstuvwxyz"

pytestmark = pytest.mark.usefixtures("hub_home")


def fetch() -> Snapshot:
    return snapshot(MODEL, COMMIT, WANTED)


def refusal(repo: str = MODEL, commit: str = COMMIT, wanted: tuple[str, ...] = WANTED) -> Problem:
    """What is said of a snapshot that cannot be had."""
    problem = refused(snapshot, repo, commit, wanted)
    assert all((problem.what, problem.got, problem.expected, problem.remedy))
    return problem


def assert_whole(hub: Hub, got: Snapshot) -> None:
    """The wanted files are those of the hub, and the checksums are theirs."""
    files = hub.model(MODEL).files(COMMIT)
    assert list(got.files) == NAMES
    for name, digest in got.files.items():
        assert (got.folder / name).read_bytes() == files[name]
        assert digest == hashlib.sha256(files[name]).hexdigest()


def assert_nothing_corrupt(hub: Hub, home: Path) -> None:
    """What lies in the cache under its final name is what the hub has."""
    files = hub.model(MODEL).files(COMMIT)
    folder = home / "hub" / "models--EleutherAI--pythia-70m"
    kept = sorted((folder / "snapshots").glob("*/*"))
    for path in kept:
        assert path.read_bytes() == files[path.name]
    blobs = [path for path in (folder / "blobs").glob("*") if path.suffix != ".incomplete"]
    assert {blob.resolve() for blob in blobs} == {path.resolve() for path in kept}


def test_only_what_is_wanted_is_fetched_and_it_is_verified(hub, hub_home, capsys):
    got = fetch()
    assert_whole(hub, got)
    assert_nothing_corrupt(hub, hub_home)
    assert got.folder.is_relative_to(hub_home)
    asked = {request.path.rpartition("/")[2] for request in hub.requests("/resolve/")}
    assert asked == set(NAMES)
    assert "".join(capsys.readouterr()) == "", "a log holds no moves of a cursor"


def test_a_whole_snapshot_asks_for_nothing_and_needs_no_room(hub, monkeypatch):
    first = fetch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    hub.log.clear()
    assert fetch() == first
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch() == first, "without a network"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == first, "offline"
    assert_whole(hub, first)
    assert hub.log == []


def test_a_listing_of_many_pages_is_read_to_its_end(hub, monkeypatch):
    monkeypatch.setattr(hub, "page", 3)
    commit = PYTHIA[SHARDED][0]
    assert {file.path for file in listing(SHARDED, commit)} == set(hub.model(SHARDED).files())
    assert len(hub.requests(TREE)) > 2


def test_a_star_stops_at_a_slash():
    files = [SimpleNamespace(path=path) for path in ("b/c.json", "a.json", "d.txt", "b/e/f.json")]

    def chosen(*patterns: str) -> list[str]:
        return [file.path for file in select(files, patterns)]

    assert chosen("*.json") == ["a.json"]
    assert chosen("*/*.json") == ["b/c.json"]
    assert chosen("d.txt", "*.json") == ["a.json", "d.txt"]
    assert chosen("*.npy") == []


def test_a_commit_stays_where_a_branch_moves(hub):
    repository = hub.model("mini/moving")
    old = repository.add({"config.json": b"old", "old.txt": b""})
    new = repository.add({"config.json": b"new"})
    got = snapshot("mini/moving", old, ["*"])
    assert (got.folder / "config.json").read_bytes() == b"old"
    assert got.files["config.json"] == hashlib.sha256(b"old").hexdigest()
    assert set(got.files) == {"config.json", "old.txt"}
    assert set(snapshot("mini/moving", new, ["*"]).files) == {"config.json"}


def test_what_is_missing_is_counted_in_bytes(hub):
    files = select(listing(MODEL, COMMIT), WANTED)
    sizes = {name: len(hub.model(MODEL).files(COMMIT)[name]) for name in NAMES}
    assert missing_bytes(files, MODEL, COMMIT) == sum(sizes.values())
    snapshot(MODEL, COMMIT, ["config.json"])
    assert missing_bytes(files, MODEL, COMMIT) == sum(sizes.values()) - sizes["config.json"]


FAULTS = {
    "a body that is cut": [Fault(WEIGHTS, "truncate", after=1000)],
    "a small body that is cut": [Fault(CONFIG, "truncate", after=10)],
    "a reset before any answer": [Fault(WEIGHTS, "reset")],
    "a reset in the middle": [Fault(WEIGHTS, "reset", after=1000)],
    "a reset of the question for the size": [Fault(WEIGHTS, "reset", "HEAD")],
    "a reset of the listing": [Fault(TREE, "reset")],
    "503 to the question for the size": [Fault(WEIGHTS, "status", "HEAD", times=3)],
    "503 of the listing": [Fault(TREE, "status", times=3)],
    "too many requests": [Fault(WEIGHTS, "status", status=429, headers={"Retry-After": "1"})],
    "a corrupt body of the right length": [Fault(WEIGHTS, "corrupt")],
    "a body that is too short": [Fault(WEIGHTS, "wrong_length", extra=-7)],
    "a body that is too long": [Fault(WEIGHTS, "wrong_length", extra=7)],
    "another length throughout": [Fault(WEIGHTS, "wrong_length", "GET|HEAD", times=2, extra=7)],
    "HTML in place of data": [Fault(WEIGHTS, "html")],
    "HTML in place of a listing": [Fault(TREE, "html")],
    "a listing that is cut": [Fault(TREE, "truncate", after=30)],
    "a listing that is no JSON": [Fault(TREE, "corrupt")],
    "many at a time": [
        Fault(TREE, "status", status=500),
        Fault(CONFIG, "corrupt"),
        Fault(WEIGHTS, "reset", after=5000),
        Fault(WEIGHTS, "corrupt"),
        Fault("tokenizer", "status", status=504, times=2),
    ],
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_that_passes_is_mended(hub, hub_home, case):
    hub.faults += [Fault(**vars(fault)) for fault in FAULTS[case]]
    assert_whole(hub, fetch())
    assert_nothing_corrupt(hub, hub_home)
    assert not any(fault.times for fault in hub.faults), "each fault has happened"


@pytest.mark.slow
def test_a_stall_ends(hub, hub_home, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
    hub.faults.append(Fault(WEIGHTS, "stall", after=1000, seconds=30))
    assert_whole(hub, fetch())
    assert_nothing_corrupt(hub, hub_home)


def test_each_try_is_told_and_keeps_whole_files(hub, capsys):
    hub.faults += [Fault(WEIGHTS, "status", status=500, times=2), Fault(CONFIG, "corrupt")]
    fetch()
    told = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{MODEL} at {COMMIT}: ") for line in told)
    assert [line[-19:] for line in told] == [f"trying again in {wait} s" for wait in WAITS]
    assert "500 Internal Server Error" in told[0]
    assert len(hub.requests("/resolve/.*/model.safetensors", "GET")) == 3
    assert len(hub.requests("/resolve-cache/.*/config.json", "GET")) == 2
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert len(hub.requests(f"/resolve-cache/.*/{name}", "GET")) == 1


def test_whole_files_are_kept_between_runs(hub):
    hub.faults.append(Fault(WEIGHTS, "status", status=500, times=None))
    assert "500" in refusal().got
    hub.faults.clear()
    hub.log.clear()
    assert_whole(hub, fetch())
    assert [r.path.rpartition("/")[2] for r in hub.requests("/resolve/", "GET")] == [
        "model.safetensors"
    ]


STAYING = {
    "500": (Fault(WEIGHTS, "status", status=500, times=None), "500 Internal Server Error"),
    "503 of the listing": (Fault(TREE, "status", times=None), "503 Service Unavailable"),
    "a corrupt body": (
        Fault(WEIGHTS, "corrupt", times=None),
        f"other content than the hub lists, in {1 + len(WAITS)} tries: model.safetensors",
    ),
    "a wrong length": (Fault(WEIGHTS, "wrong_length", "GET|HEAD", None), "model.safetensors"),
    "a wrong length of the body": (Fault(WEIGHTS, "wrong_length", times=None), "of size"),
    "too long a body": (Fault(WEIGHTS, "wrong_length", times=None, extra=9), "of size"),
    "resets": (Fault(WEIGHTS, "reset", times=None), "ReadError"),
    "HTML in place of data": (Fault(CONFIG, "html", times=None), "of size"),
    "HTML in place of a listing": (Fault(TREE, "html", times=None), "JSONDecodeError"),
    "no ETag": (Fault(CONFIG, "no_etag", "GET|HEAD", None), "ETag"),
}


@pytest.mark.parametrize("case", STAYING)
def test_a_fault_that_stays_is_told_without_the_token_and_leaves_nothing_corrupt(
    hub, hub_home, monkeypatch, capsys, caplog, case
):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    fault, got = STAYING[case]
    hub.faults.append(Fault(**vars(fault)))
    problem = refusal()
    assert SECRET not in str(problem) + "".join(capsys.readouterr()) + caplog.text
    assert problem.what == f"{MODEL} at {COMMIT}"
    assert got in problem.got
    assert ("proxy" in problem.remedy) == ("other content" in problem.got)
    assert_nothing_corrupt(hub, hub_home)
    hub.faults.clear()
    assert_whole(hub, fetch())


NOWHERE = {"http://127.0.0.1:9": "Connection refused", "http://none.invalid": "ConnectError"}


@pytest.mark.parametrize("endpoint", NOWHERE)
def test_no_network_is_told_at_once_with_ways_to_go_on(hub, monkeypatch, capsys, endpoint):
    monkeypatch.setattr("pipeline.workflow.network.CONNECT_SECONDS", 60)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    problem = refusal()
    assert not capsys.readouterr().out, "nothing is tried twice"
    assert problem.what == f"to fetch {MODEL} at {COMMIT}"
    assert NOWHERE[endpoint] in problem.got
    assert all(way in problem.remedy for way in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "STUDY=tiny"))


def test_without_the_hub_a_branch_is_what_it_was(hub_home, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = f"models--{MODEL.replace('/', '--')}"
    kept = Path(constants.HF_HUB_CACHE) / folder / "refs/main"
    kept.parent.mkdir(parents=True)
    kept.write_text(COMMIT)
    assert commit_of(MODEL, "main") == COMMIT
    with pytest.raises(InputError):
        commit_of(MODEL, "another")


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    told = threading.Event()

    def hang(*_: object, **__: object) -> None:
        assert told.wait(60), "the message waited for the name server"
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr("pipeline.workflow.network.CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(constants, "ENDPOINT", "http://a-name-that-hangs.invalid")
    problem = refusal()
    told.set()
    assert problem.got == "no answer of http://a-name-that-hangs.invalid in 0 s"


def test_a_name_that_stops_resolving_is_not_tried_again(hub, monkeypatch, capsys):
    assert unreachable(hub.url) is None

    def gone(*_: object, **__: object) -> None:
        raise httpx2.ConnectError("no name") from socket.gaierror(-3, "Temporary failure")

    monkeypatch.setattr("pipeline.workflow.hub.HfApi", gone)
    assert "STUDY=tiny" in refusal().remedy
    assert "trying again" not in capsys.readouterr().out


def test_xet_is_off_whatever_the_hub_offers(hub):
    """Its client knows none of the retries and explanations that are tested here."""
    from huggingface_hub.utils._runtime import is_xet_available

    assert not is_xet_available()
    headers = httpx2.head(f"{hub.url}/{MODEL}/resolve/{COMMIT}/model.safetensors").headers
    assert headers["X-Xet-Hash"], "the hub offers it"
    fetch()
    assert hub.requests("xet-read-token") == []
    assert len(hub.requests("/xet-bridge/", "GET")) == 1


@pytest.mark.parametrize(
    ("asked", "got"),
    [({"repo": "mini/none"}, "no such repository"), ({"commit": "0" * 40}, "no such commit")],
)
def test_what_is_not_there_is_told_at_once(hub, asked, got):
    problem = refusal(**asked)
    assert got in problem.got
    assert "HF_TOKEN" in problem.remedy
    assert len(hub.log) == 1, "it does not come by asking"


def test_files_that_the_commit_lacks_are_told_with_those_that_it_has(hub):
    commit = hub.model(PICKLE_ONLY).resolve("main")
    problem = refusal(PICKLE_ONLY, commit, ("*.safetensors",))
    assert "pytorch_model.bin" in problem.got
    assert "*.safetensors" in problem.expected
    assert hub.requests("/resolve/") == []


@pytest.mark.parametrize(
    ("status", "headers"), [(401, {}), (403, {}), (403, {"X-Error-Code": "GatedRepo"})]
)
@pytest.mark.parametrize("path", [TREE, WEIGHTS])
def test_a_repository_that_wants_a_token_says_so(hub, status, headers, path):
    hub.faults.append(Fault(path, "status", "GET|HEAD", None, status, headers))
    problem = refusal()
    assert problem.got == "the hub wants a token that may read it"
    assert "HF_TOKEN" in problem.remedy
    assert len(hub.requests(path)) == 1, "no try will help"


@pytest.mark.parametrize("wanted", [("*/*/*.txt",), (CLIMBING_PATH, *WANTED)])
def test_a_path_that_climbs_is_refused(hub, hub_home, wanted):
    hub.faults.append(Fault(TREE, "climb", times=None))
    problem = refusal(wanted=wanted)
    assert CLIMBING_PATH in problem.got
    assert "do not use this repository" in problem.remedy
    assert hub.requests("/resolve/") == []
    assert not hub_home.exists()


def test_a_path_that_climbs_and_is_not_wanted_is_never_asked_for(hub, tmp_path):
    hub.faults.append(Fault(TREE, "climb", times=None))
    assert_whole(hub, fetch())
    assert hub.requests("climbed") == []
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.read_bytes() != CLIMBING_CONTENT for path in written)


@pytest.mark.parametrize("path", ["/etc/x.txt", "a/../x.txt", "..", "a\\x.txt", "C:x.txt"])
def test_every_way_out_of_a_folder_is_refused(monkeypatch, path):
    listed = [SimpleNamespace(path=path, size=1)]
    monkeypatch.setattr("pipeline.workflow.hub.listing", lambda *_: listed)
    assert repr(path) in refusal(wanted=(path.replace("\\", "?"),)).got


@pytest.mark.parametrize("cached", [(), ("config.json",)], ids=["nothing", "half"])
def test_offline_what_is_missing_is_told(hub, monkeypatch, cached):
    if cached:
        snapshot(MODEL, COMMIT, cached)
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    problem = refusal()
    assert problem.got == "HF_HUB_OFFLINE is set, and the cache does not hold all of it"
    assert constants.HF_HUB_CACHE in problem.expected
    assert "run once with a network" in problem.remedy
    assert hub.log == []


def test_a_file_that_was_changed_in_the_cache_is_fetched_again(hub, hub_home, monkeypatch):
    weights = fetch().folder / "model.safetensors"
    for offline in (False, True):
        weights.resolve().write_bytes(weights.read_bytes()[:-1] + b"?")
        hub.log.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        if offline:
            assert "HF_HUB_OFFLINE" in refusal().got
            assert_nothing_corrupt(hub, hub_home)
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        assert_whole(hub, fetch())
        asked = {request.path.rpartition("/")[2] for request in hub.requests(CONTENT, "GET")}
        assert asked == {"model.safetensors"}


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(hub, hub_home, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000_000))
    problem = refusal()
    assert problem.what == f"the disk that holds {hub_home / 'hub'}"
    assert problem.got == "1.0 GB free"
    assert problem.expected.startswith("1.1 GB: 0.0 for EleutherAI/pythia-70m, and 1.1 to spare")
    assert "HF_HOME" in problem.remedy
    assert hub.requests("/resolve/") == []


def test_a_disk_that_fills_up_is_told_and_the_rest_is_taken_up_later(hub, hub_home):
    with no_file_larger_than(100_000):
        problem = refusal()
    assert f"[Errno {errno.EFBIG}]" in problem.got
    assert problem.expected == f"a cache that can be written: {hub_home / 'hub'}"
    assert "HF_HOME" in problem.remedy
    assert_nothing_corrupt(hub, hub_home)
    assert_whole(hub, fetch())


def test_a_cache_that_cannot_be_written_is_told(hub_home):
    hub_home.write_text("a file where a folder should be")
    problem = refusal()
    assert "Errno" in problem.got
    assert problem.expected == f"a cache that can be written: {hub_home / 'hub'}"


def test_a_token_of_the_environment_is_sent(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    fetch()
    assert hub.log
    assert all(request.authorized != ("xet-bridge" in request.path) for request in hub.log), (
        "and not to another host"
    )


def test_a_token_in_a_file_is_not(hub, hub_home):
    hub_home.mkdir()
    (hub_home / "token").write_text(SECRET)
    from huggingface_hub import get_token

    assert get_token() == SECRET, "the client itself would send it"
    fetch()
    assert not any(request.authorized for request in hub.log)
