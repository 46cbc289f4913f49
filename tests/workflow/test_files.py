"""Whole files or none."""

from pipeline.workflow.files import atomic, write_json


def test_nothing_has_the_final_name_before_it_is_whole(tmp_path):
    path = tmp_path / "below" / "file"
    with atomic(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_json_keeps_its_order_and_its_letters(tmp_path):
    write_json(tmp_path / "a.json", {"z": "ä", "a": 1})
    assert (tmp_path / "a.json").read_text() == '{\n  "z": "ä",\n  "a": 1\n}\n'
