"""The real Pile samples: verified byte for byte, or refused with nothing left behind."""

import hashlib
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.samples import pile
from pipeline.samples.draw import draw
from pipeline.workflow.errors import InputError
from tests.hub import miniatures
from tests.hub.population import GPT_NEO_SAMPLES
from tests.hub.server import Fault, Hub
from tests.project import refused

ROWS = miniatures.SAMPLES
NAMES = ["train_preprefix.npy", "train_prefix.npy", "train_suffix.npy"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The three files, of the real ones' form."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in miniatures.gpt_neo_samples().items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def url(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where they can be downloaded; no wait between tries takes time."""
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda _: None))
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(variable, "127.0.0.1")
    return hub.url + GPT_NEO_SAMPLES


def checksums() -> dict[str, str]:
    files = miniatures.gpt_neo_samples()
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def passages() -> np.ndarray:
    files = miniatures.gpt_neo_samples()
    return np.concatenate([np.load(io.BytesIO(files[name])) for name in NAMES], axis=1)


def joined(folder: Path, *pinned: str) -> np.ndarray:
    """The passages of the files, those named with the checksums that they have."""
    own = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in pinned}
    return pile.fetch_passages("https://none", checksums() | own, folder, folder.parent / "cache")


def test_the_three_files_are_joined(folder: Path, tmp_path: Path) -> None:
    made = joined(folder)
    assert made.shape == (ROWS, 200)
    assert made.dtype == np.uint16
    assert made.flags.c_contiguous
    assert made.tolist() == passages().tolist()
    assert not (tmp_path / "cache").exists(), "nothing is downloaded"


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_byte_is_refused(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    problem = refused(joined, folder)
    assert problem.what == f"{folder}/{name}"
    assert hashlib.sha256(content).hexdigest() in problem.got
    assert checksums()[name] in problem.expected
    assert "run.pile_folder" in problem.remedy


def test_every_bad_file_is_named(folder: Path) -> None:
    (folder / "train_prefix.npy").unlink()
    (folder / "train_suffix.npy").write_bytes(b"")
    with pytest.raises(InputError) as caught:
        joined(folder)
    assert [problem.what.rpartition("/")[2] for problem in caught.value.problems] == NAMES[1:]


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros((ROWS, 49), np.uint16), "expected: +50 tokens a passage"),
        (np.zeros((ROWS, 50), np.int64), "expected: +50 tokens a passage"),
        (np.zeros(50, np.uint16), "expected: +50 tokens a passage"),
        (np.array([{"a": 1}], dtype=object), "expected: +50 tokens a passage"),
        (np.zeros((ROWS - 1, 50), np.uint16), f"{ROWS}, {ROWS}, {ROWS - 1}"),
    ],
    ids=["too short", "wide numbers", "one row", "a pickle", "another number of passages"],
)
def test_another_array_is_refused_though_its_checksum_is_pinned(
    folder: Path, array: np.ndarray, told: str
) -> None:
    np.save(folder / "train_suffix.npy", array, allow_pickle=True)
    assert re.search(told, str(refused(joined, folder, "train_suffix.npy")))


def test_downloads_once(hub: Hub, url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert pile.fetch_passages(url, checksums(), None, cache).tolist() == passages().tolist()
    asked, *fetched = [request.path for request in hub.log]
    assert asked == GPT_NEO_SAMPLES, "whether the host can be reached"
    assert fetched == [f"{GPT_NEO_SAMPLES}/{name}" for name in NAMES]
    hub.log.clear()
    pile.fetch_passages(url, checksums(), None, cache)
    assert hub.log == []
    (cache / "train_prefix.npy").write_bytes(b"cut short")
    assert pile.fetch_passages(url, checksums(), None, cache).tolist() == passages().tolist()
    assert len(hub.log) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("train_suffix", "status", status=500, times=3),
        Fault("train_suffix", "status", status=503),
        Fault("train_suffix", "truncate", after=100),
        Fault("train_suffix", "reset"),
        Fault("train_suffix", "reset", after=100),
        Fault("train_suffix", "corrupt", times=2),
        Fault("train_suffix", "html"),
    ],
    ids=["500", "503", "cut", "reset", "reset in the middle", "corrupt", "HTML"],
)
def test_a_fault_that_passes_is_mended(hub: Hub, url: str, tmp_path: Path, fault: Fault) -> None:
    times = fault.times or 0
    hub.faults.append(Fault(**vars(fault)))
    made = pile.fetch_passages(url, checksums(), None, tmp_path / "cache")
    assert made.tolist() == passages().tolist()
    assert len(hub.requests("train_suffix")) == times + 1
    assert len(hub.requests("train_prefix")) == 1, "whole files are kept"


@pytest.mark.parametrize("kind", ["status", "corrupt", "html", "reset"])
def test_a_fault_that_stays_is_refused_and_nothing_of_it_kept(
    hub: Hub, url: str, tmp_path: Path, kind: str
) -> None:
    hub.faults.append(Fault("train_suffix", kind, times=None))  # type: ignore[arg-type]
    problem = refused(pile.fetch_passages, url, checksums(), None, tmp_path / "cache")
    assert problem.what == f"{url}/train_suffix.npy"
    assert "run.pile_folder" in problem.remedy
    assert len(hub.requests("train_suffix")) == pile.TRIES
    kept = {file.name for file in (tmp_path / "cache").iterdir()}
    assert kept == {"train_preprefix.npy", "train_prefix.npy"}


@pytest.mark.usefixtures("url")
def test_no_network_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.pile_folder") as caught:
        pile.fetch_passages("http://127.0.0.1:9", checksums(), None, tmp_path / "cache")
    assert len(caught.value.problems) == 1


def test_some_are_drawn_in_their_order() -> None:
    whole = passages()
    drawn = draw(range(ROWS), 10, 7)
    assert pile.memorized(whole, 10, seed=7).tolist() == whole[drawn].tolist()
    assert pile.memorized(whole, 10, seed=8).tolist() != whole[drawn].tolist()
    assert pile.memorized(whole, ROWS, seed=7).tolist() == whole.tolist()


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match=f"at most {ROWS}"):
        pile.memorized(passages(), ROWS + 1, seed=0)
