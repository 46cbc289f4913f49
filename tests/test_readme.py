"""The examples of the README and the docs run and print what they say."""

import doctest
import json
import re
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

from pipeline.tasks.loading import load_tasks, quiet, tasks_in
from tests import own
from tests.families import FAMILIES

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code of a page in one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def test_the_example_of_the_python_page():
    found = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False)
    assert found.attempted > 5
    assert not found.failed


def test_the_example_of_the_readme(tmp_path, capsys):
    """A small model stands in for the published one."""
    own.write_checkpoint(tmp_path)
    (code,) = blocks("README.md", "python")
    code, replaced = re.subn(r'^name = ".*?"', f"name = {str(tmp_path)!r}", code, flags=re.M)
    assert replaced == 1
    exec(code, {})
    assert f"torch.Size([{1 + own.BLOCKS + 4}, 1, 8])" in capsys.readouterr().out


def test_the_example_of_a_folder_of_tasks(tmp_path, monkeypatch):
    page = "docs/your-own.md"
    (task,) = [block for block in blocks(page, "yaml") if block.startswith("task:")]
    (data,) = blocks(page, "json")
    (tmp_path / "capitals.yaml").write_text(task)
    (tmp_path / "capitals.jsonl").write_text(data)
    loaded = load_tasks(tasks_in(tmp_path), tmp_path)["capitals"]
    documents = list(loaded.eval_docs)
    assert documents == [json.loads(line) for line in data.splitlines()]
    assert loaded.doc_to_text(documents[0]).endswith("France?\nAnswer:")
    assert loaded.doc_to_choice(documents[0])[loaded.doc_to_target(documents[0])] == "Paris"
    with quiet():
        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        with pytest.raises(FileNotFoundError):  # lm-eval itself looks in the present folder
            manager.load(["capitals"])
        monkeypatch.chdir(tmp_path)
        (of_lm_eval,) = manager.load(["capitals"])["tasks"].values()
    assert list(of_lm_eval.eval_docs) == documents


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_families_are_counted(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(rf"\b{len(FAMILIES)} (small|tiny) models", text)
