"""Whole files or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.workflow.files import atomic, write_json


@pytest.mark.parametrize("directory", [False, True])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path, directory: bool) -> None:
    path = tmp_path / "it"
    path.mkdir() if directory else path.touch()
    file = "file" if directory else ""
    (path / file).write_text("old")

    def fail_before_it_is_whole() -> None:
        with atomic(path, directory=directory) as temporary:
            (temporary / file).write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_before_it_is_whole()
    assert (path / file).read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_has_the_final_name_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    with atomic(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_json_keeps_its_order_and_its_letters(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"z": "ä", "a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "z": "ä",\n  "a": 1\n}\n'
