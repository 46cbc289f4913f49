"""Whole files or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.workflow.files import atomic, write_json


def _fail_after(path: Path, name: str | None = None) -> None:
    """Write something, then fail before it is whole."""
    with atomic(path, directory=name is not None) as temporary:
        (temporary / name if name else temporary).write_text("half of the n")
        raise RuntimeError


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError):
        _fail_after(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_has_the_final_name_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    with atomic(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("first", "second"):
        with atomic(folder, directory=True) as temporary:
            (temporary / name).write_text(name)
    assert [p.name for p in folder.iterdir()] == ["second"]
    with pytest.raises(RuntimeError):
        _fail_after(folder, "third")
    assert [p.name for p in folder.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_signal_between_the_renames_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    with atomic(folder, directory=True) as temporary:
        (temporary / "first").touch()

    def told_to_end(*_: object) -> None:
        raise SystemExit(143)

    def replace_folder() -> None:
        with atomic(folder, directory=True) as temporary:
            (temporary / "second").touch()
            monkeypatch.setattr(Path, "replace", told_to_end)

    with pytest.raises(SystemExit):
        replace_folder()
    assert [p.name for p in folder.iterdir()] == ["first"]
    assert list(tmp_path.iterdir()) == [folder]


def test_json_keeps_its_order_and_its_letters(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"z": "ä", "a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "z": "ä",\n  "a": 1\n}\n'
