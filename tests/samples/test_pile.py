"""The real Pile samples: verified byte for byte, or refused with nothing left behind."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline import tables
from pipeline.errors import InputError
from pipeline.samples import pile

WIDTHS = {"train_preprefix.npy": 100, "train_prefix.npy": 50, "train_suffix.npy": 50}
ROWS = 6


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files of the real ones' form, which the module takes for the pinned ones."""
    folder = tmp_path / "files"
    folder.mkdir()
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 50_257, (ROWS, width)).astype(np.uint16) for width in WIDTHS.values()]
    parts[2][5] = parts[2][1]  # two passages share a suffix
    sums = {}
    for name, part in zip(WIDTHS, parts, strict=True):
        np.save(folder / name, np.asfortranarray(part))
        sums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    joined = np.ascontiguousarray(np.concatenate(parts, axis=1))
    monkeypatch.setattr(pile, "SHA256", sums)
    monkeypatch.setattr(pile, "JOINED_MD5", hashlib.md5(joined.tobytes()).hexdigest())
    return folder


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serves the files in the place of the real host; yields the paths that were asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        monkeypatch.setattr(pile, "URL", f"http://127.0.0.1:{served.server_port}")
        yield asked
        served.shutdown()
        thread.join()


def test_passages_are_cut_around_the_prefix_boundary(folder: Path, tmp_path: Path) -> None:
    passages = pile.fetch(folder, tmp_path / "cache")
    assert passages.shape == (ROWS, 200)
    whole = pile.samples(passages)
    assert whole["tokens"].to_list() == passages.tolist()
    assert whole["prefix_length"].unique().to_list() == [150]
    assert whole["suffix_length"].unique().to_list() == [50]
    short = pile.samples(passages, 10, 4)
    assert short["tokens"].to_list() == passages[:, 140:154].tolist()
    assert short["split"].unique().to_list() == ["memorized"]
    assert short["copies"].null_count() == ROWS
    groups = whole["suffix_group"].to_list()
    assert groups[5] == groups[1]
    assert len(set(groups)) == ROWS - 1
    tables.write(whole, tmp_path / "t.parquet", tables.SAMPLES, {})


@pytest.mark.parametrize("name", WIDTHS)
def test_a_flipped_byte_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        pile.fetch(folder, tmp_path / "cache")
    (problem,) = caught.value.problems
    assert name in problem.what
    assert pile.SHA256[name] in problem.expected


def test_every_bad_file_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "train_prefix.npy").unlink()
    np.save(folder / "train_suffix.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError) as caught:
        pile.fetch(folder, tmp_path / "cache")
    message = str(caught.value)
    assert "train_prefix.npy" in message
    assert "train_suffix.npy" in message
    assert "train_preprefix.npy\n" not in message


def test_files_in_another_order_are_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pile, "SHA256", dict(reversed(pile.SHA256.items())))
    with pytest.raises(InputError, match="the joined samples"):
        pile.fetch(folder, tmp_path / "cache")


@pytest.mark.parametrize(("prefix", "suffix"), [(0, 50), (151, 50), (150, 0), (150, 51)])
def test_lengths_out_of_range_are_refused(prefix: int, suffix: int) -> None:
    with pytest.raises(InputError, match="of Pile samples"):
        pile.samples(np.zeros((1, 200), np.uint16), prefix, suffix)


def test_downloads_once(server: list[str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert pile.fetch(None, cache).shape == (ROWS, 200)
    assert len(server) == 3
    pile.fetch(None, cache)
    assert len(server) == 3
    (cache / "train_prefix.npy").write_bytes(b"cut short")
    assert pile.fetch(None, cache).shape == (ROWS, 200)
    assert len(server) == 4


def test_a_corrupt_download_is_refused_and_not_kept(
    server: list[str], folder: Path, tmp_path: Path
) -> None:
    (folder / "train_suffix.npy").write_bytes(b"<html>gone</html>")
    with pytest.raises(InputError, match=r"train_suffix\.npy"):
        pile.fetch(None, tmp_path / "cache")
    kept = {file.name for file in (tmp_path / "cache").iterdir()}
    assert kept == {"train_preprefix.npy", "train_prefix.npy"}


def test_no_network_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pile, "URL", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"run\.pile_folder") as caught:
        pile.fetch(None, tmp_path / "cache")
    assert len(caught.value.problems) == 3
