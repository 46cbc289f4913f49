"""A disk that refuses: one clear message, the old content as it was, and nothing half-written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from pipeline.study.composition import CONF, compose, load
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, disk_problem
from pipeline.workflow.files import atomic, write_json, write_text
from tests.project import Project, commit_all, copy_files, no_file_larger_than

ROOT = Path(__file__).parents[2]
SIZE = 256 * 1024
"""Of the small disk, bytes; every writer below writes more."""

SCHEMA: tables.Schema = {"x": tables.Column(pl.Float64, "noise, which nothing compresses")}


def write_table(path: Path) -> None:
    noise = np.random.default_rng(0).random(200_000)
    tables.write(pl.DataFrame({"x": noise}), path, SCHEMA, {})


def write_weights(path: Path) -> None:
    with atomic(path, directory=True) as temporary:
        (temporary / "first").write_text("this one fits")
        save_file({"w": torch.rand(200_000)}, temporary / "model.safetensors")


def write_tokenizer(path: Path) -> None:
    words = {f"token {i:020d}": i for i in range(20_000)}
    with atomic(path, directory=True) as temporary:
        Tokenizer(models.BPE(vocab=words, merges=[])).save(str(temporary / "tokenizer.json"))


WRITERS: dict[str, Callable[[Path], None]] = {
    "table": write_table,
    "text": lambda path: write_text(path, "x" * 1_000_000),
    "json": lambda path: write_json(path, list(range(200_000))),
    "weights": write_weights,
    "tokenizer": write_tokenizer,
}


@contextmanager
def mounted(folder: Path, size: int = SIZE) -> Iterator[None]:
    """A small file system of its own at `folder`; skips the test where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("to mount a small disk takes root")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"to mount a small disk is not allowed here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def limited(folder: Path) -> AbstractContextManager[None]:
    return no_file_larger_than(SIZE)


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("disk", "code"), [(mounted, errno.ENOSPC), (limited, errno.EFBIG)])
def test_what_does_not_fit_leaves_no_trace(
    tmp_path: Path,
    disk: Callable[[Path], AbstractContextManager[None]],
    code: int,
    writer: str,
    there: bool,
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with disk(folder):
        final = folder / "final"
        if there and writer in ("weights", "tokenizer"):
            final.mkdir()
            (final / "old").write_text("old")
        elif there:
            final.write_text("old")
        with pytest.raises(OSError, match="final") as caught:
            WRITERS[writer](final)
        assert caught.value.errno == code
        assert caught.value.filename == str(final), "the message is about the name one knows"
        problem = disk_problem(caught.value)
        assert problem is not None
        assert problem.what == str(final)
        assert list(folder.iterdir()) == ([final] if there else [])
        if there:
            assert (final / "old" if final.is_dir() else final).read_text() == "old"
            assert not final.is_dir() or [p.name for p in final.iterdir()] == ["old"]


def test_a_folder_under_a_files_name_is_refused_before_the_work(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.mkdir()
    (path / "mine").touch()
    begun = False
    with pytest.raises(IsADirectoryError) as caught, atomic(path):
        begun = True
    assert not begun
    assert disk_problem(caught.value) is not None
    assert [p.name for p in path.iterdir()] == ["mine"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_under_a_folders_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(OSError, match="data") as caught:
        write_json(tmp_path / "data" / "tiny" / "study.json", {})
    assert disk_problem(caught.value) is not None
    assert (tmp_path / "data").read_text() == "mine"


def test_a_folder_is_exchanged_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old folder goes away under another name: killed in between, half of one is never seen."""
    folder = tmp_path / "folder"
    seen: list[list[str]] = []

    def remove(path: Path, *_: object) -> None:
        seen.append(sorted(p.name for p in folder.iterdir()))
        assert path != folder
        rmtree(path)

    for name in ("first", "second"):
        with atomic(folder, directory=True) as temporary:
            (temporary / name).touch()
            (temporary / "both").touch()
        rmtree = shutil.rmtree
        monkeypatch.setattr(shutil, "rmtree", remove)
    assert seen == [["both", "second"]]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("signalled", [False, True])
def test_a_rename_that_fails_gives_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signalled: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()

    def refuse(path: Path, target: Path) -> Path:
        if signalled:
            raise SystemExit(143)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path), None, str(target))

    monkeypatch.setattr(Path, "replace", refuse)
    refused = (SystemExit, "143") if signalled else (OSError, "folder")
    with (
        pytest.raises(refused[0], match=refused[1]),
        atomic(folder, directory=True) as temporary,
    ):
        (temporary / "new").touch()
    assert list(tmp_path.iterdir()) == [folder]
    assert [p.name for p in folder.iterdir()] == ["old"]


def test_an_error_of_another_kind_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, atomic(tmp_path / "folder", directory=True):
        (tmp_path / "another").read_text()
    assert not [*tmp_path.iterdir()]
    assert caught.value.filename == str(tmp_path / "another")
    with pytest.raises(RuntimeError, match="mine"), atomic(tmp_path / "file"):
        raise RuntimeError("mine")
    assert disk_problem(OSError("no number: of a library")) is None


@pytest.mark.parametrize("content", [None, b"PAR1"], ids=["empty folder", "folder of tables"])
def test_a_folder_is_not_read_as_a_table(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "t.parquet"
    path.mkdir()
    if content:
        tables.write(pl.DataFrame({"x": [1.0]}), path / "part.parquet", SCHEMA, {})
    with pytest.raises(InputError, match="move the folder of that name away"):
        tables.read(path, SCHEMA)


def test_no_pattern_is_read_as_a_table(tmp_path: Path) -> None:
    tables.write(pl.DataFrame({"x": [1.0]}), tmp_path / "a.parquet", SCHEMA, {})
    with pytest.raises(InputError, match=r"No such file[\s\S]*run the stage that writes it"):
        tables.read(tmp_path / "*.parquet", SCHEMA)


# ---------------------------------------------------------------------- real stages


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    copy_files(root)
    return root


def run(root: Path, *arguments: str, within: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit status of a command of the pipeline, and all that it says."""
    command = (*within, sys.executable, "-B", "-m", "pipeline", *arguments)
    done = Project(root).command(*command, check=False)
    return done.returncode, done.stdout + done.stderr


def assert_refused(status: int, said: str, *parts: str) -> None:
    assert status == 2, said
    assert "Traceback" not in said
    for part in ("1 problem with the input", "got:", "expected:", "remedy:", *parts):
        assert part in said


def without_privileges() -> tuple[str, ...]:
    """What makes a command obey the modes of files, which root does not."""
    if os.geteuid():
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("root obeys no modes, and setpriv, which would change that, is not here")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner")


def files(root: Path) -> list[str]:
    below = root / "data"
    return sorted(p.relative_to(below).as_posix() for p in below.rglob("*") if p.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("command", [["check@tiny"], ["theory@tiny-low-rank"]], ids=" ".join)
def test_a_stage_on_a_full_disk(project: Path, command: list[str]) -> None:
    data = project / "data"
    data.mkdir()
    study = load(project / "params.yaml").study
    with mounted(data, size=64 * 1024):
        (data / study).mkdir()
        with pytest.raises(OSError, match="No space"), (data / "ballast").open("wb") as ballast:
            ballast.write(bytes(1 << 20))
        status, said = run(project, "stage", *command)
        assert_refused(status, said, "No space left on device", "free some room")
        assert files(project) == ["ballast"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data.chmod(0o555), ("data", "Permission denied", "owner or mode")),
        (lambda data: (data.parent / "params.yaml").chmod(0), ("params.yaml", "chmod")),
        (
            lambda data: (data / "tiny/study.json").mkdir(parents=True),
            ("data/tiny/study.json", "move the folder of that name away"),
        ),
        (
            lambda data: (data.rmdir(), data.write_text("mine")),
            ("data", "move the file of that name away"),
        ),
    ],
    ids=["no permission", "unreadable params", "a folder in its way", "a file in its way"],
)
def test_a_stage_that_is_refused(
    project: Path, spoil: Callable[[Path], object], said: tuple[str, ...]
) -> None:
    data = project / "data"
    data.mkdir()
    spoil(data)
    before = [data.read_text()] if data.is_file() else sorted(data.rglob("*"))
    assert_refused(*run(project, "stage", "check@tiny", within=without_privileges()), *said)
    assert before == ([data.read_text()] if data.is_file() else sorted(data.rglob("*")))


def test_a_stage_on_a_disk_that_is_read_only(project: Path) -> None:
    data = project / "data"
    data.mkdir()
    with mounted(data):
        subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        said = run(project, "stage", "check@tiny")
    assert_refused(*said, "Read-only file system", "mount it for writing")


def test_a_study_where_params_may_not_be_written(project: Path) -> None:
    commit_all(project)
    before = (project / "params.yaml").read_bytes()
    project.chmod(0o555)
    try:
        status, said = run(project, "study", "small", within=without_privileges())
    finally:
        project.chmod(0o755)
    assert_refused(status, said, "Permission denied")
    assert (project / "params.yaml").read_bytes() == before
    assert not list(project.glob(".*part*"))


def test_an_edited_configuration_that_cannot_be_composed(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / CONF, conf)
    for text in ("a: [", "a: ${nowhere}", "defaults: [{nothing: here}]", "- a\n- b"):
        (conf / "study" / "tiny.yaml").write_text(f"# @package _global_\n{text}\n")
        with pytest.raises(InputError) as caught:
            compose({"study": "tiny"}, conf=conf, path=tmp_path / "params.yaml")
        assert "remedy:" in str(caught.value)
        assert [p.name for p in tmp_path.iterdir()] == ["conf"]
