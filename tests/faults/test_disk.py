"""A disk that refuses: one clear message, the old content as it was, and nothing half-written."""

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
from pipeline.workflow.files import atomic, write_json
from tests.project import ROOT, Project, commit_all, copy_files, no_file_larger_than

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


@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("disk", "code"), [(mounted, errno.ENOSPC), (lambda _: no_file_larger_than(SIZE), errno.EFBIG)]
)
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
        old = final / "old" if writer in ("weights", "tokenizer") else final
        if there:
            old.parent.mkdir(exist_ok=True)
            old.write_text("old")
        before = sorted(folder.rglob("*"))
        with pytest.raises(OSError, match="final") as caught:
            WRITERS[writer](final)
        assert caught.value.errno == code
        assert caught.value.filename == str(final), "the message is about the name one knows"
        problem = disk_problem(caught.value)
        assert problem is not None
        assert problem.what == str(final)
        assert sorted(folder.rglob("*")) == before
        assert not there or old.read_text() == "old"


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
    error = SystemExit if signalled else OSError
    with pytest.raises(error, match=r"143|folder"), atomic(folder, directory=True) as temporary:
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


def test_neither_a_folder_nor_a_pattern_is_read_as_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.mkdir()
    tables.write(pl.DataFrame({"x": [1.0]}), path / "part.parquet", SCHEMA, {})
    with pytest.raises(InputError, match="move the folder of that name away"):
        tables.read(path, SCHEMA)
    with pytest.raises(InputError, match=r"No such file[\s\S]*run the stage that writes it"):
        tables.read(path / "*.parquet", SCHEMA)


# ---------------------------------------------------------------------- real stages


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    copy_files(root)
    (root / "data").mkdir()
    return root


def assert_refused(root: Path, command: str, *parts: str, within: tuple[str, ...] = ()) -> None:
    """A command of the pipeline says what is wrong, how it can be mended, and each of `parts`."""
    words = (*within, sys.executable, "-B", "-m", "pipeline", *command.split())
    done = Project(root).command(*words, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
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


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["check@tiny", "theory@tiny-low-rank"])
def test_a_stage_on_a_full_disk(project: Path, stage: str) -> None:
    data = project / "data"
    study = load(project / "params.yaml").study
    with mounted(data, size=64 * 1024):
        (data / study).mkdir()
        with pytest.raises(OSError, match="No space"), (data / "ballast").open("wb") as ballast:
            ballast.write(bytes(1 << 20))
        assert_refused(project, f"stage {stage}", "No space left on device", "free some room")
        assert [p for p in data.rglob("*") if p.is_file()] == [data / "ballast"]


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
    spoil(data)
    before = [data.read_text()] if data.is_file() else sorted(data.rglob("*"))
    assert_refused(project, "stage check@tiny", *said, within=without_privileges())
    assert before == ([data.read_text()] if data.is_file() else sorted(data.rglob("*")))


def test_a_stage_on_a_disk_that_is_read_only(project: Path) -> None:
    data = project / "data"
    with mounted(data):
        subprocess.run(["mount", "-o", "remount,ro", str(data)], check=True)
        assert_refused(project, "stage check@tiny", "Read-only file system", "mount it for writing")


def test_a_study_where_params_may_not_be_written(project: Path) -> None:
    commit_all(project)
    before = (project / "params.yaml").read_bytes()
    project.chmod(0o555)
    try:
        assert_refused(project, "study small", "Permission denied", within=without_privileges())
    finally:
        project.chmod(0o755)
    assert (project / "params.yaml").read_bytes() == before
    assert not list(project.glob(".*part*"))


def test_an_edited_configuration_that_cannot_be_composed(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / CONF, conf)
    for text in ("a: [", "a: ${nowhere}", "defaults: [{nothing: here}]", "- a\n- b"):
        (conf / "study" / "tiny.yaml").write_text(f"# @package _global_\n{text}\n")
        with pytest.raises(InputError, match="remedy:"):
            compose({"study": "tiny"}, conf=conf, path=tmp_path / "params.yaml")
        assert [p.name for p in tmp_path.iterdir()] == ["conf"]
