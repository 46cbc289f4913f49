"""The command that writes commits in place of branches."""

from pathlib import Path

import pytest

from pipeline.study import pins
from pipeline.workflow.errors import InputError, Problem

WHOLE = "a" * 40
TEXT = f"""\
# a comment with commit: main
models:
  one:
    checkpoint: {{source: hub, repo: owner/model, commit: main, billions: 1}} # kept
    shared: &same
      repo: owner/texts
      commit: "main"
  two: {{<<: *same, repo: owner/texts}}
  three: {{<<: *same, commit: step1}}
samples:
  texts: *same
  tokenizer: {{repo: main/model, commit: step1}}
  whole: {{repo: owner/whole, commit: {WHOLE}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study/mine.yaml"
    path.parent.mkdir()
    path.write_text(TEXT)
    return path


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str, str], str]:
    known = {
        ("owner/model", "main", "model"): "1" * 40,
        ("owner/texts", "main", "dataset"): "2" * 40,
        ("main/model", "step1", "model"): "3" * 40,
        ("owner/texts", "step1", "dataset"): "4" * 40,
    }

    def ask(repo: str, branch: str, kind: str) -> str:
        if (repo, branch, kind) not in known:
            raise InputError(Problem(f"{repo} at {branch}", "nothing", "a commit", "look"))
        return known[repo, branch, kind]

    monkeypatch.setattr(pins, "commit_of", ask)
    return known


@pytest.mark.usefixtures("commits")
def test_branches_become_commits_and_nothing_else_changes(file):
    told = pins.pin("mine", file.parent.parent)
    assert told == [
        f"owner/model: main is {'1' * 40}",
        f"owner/texts: main is {'2' * 40}",
        f"owner/texts: step1 is {'4' * 40}",
        f"main/model: step1 is {'3' * 40}",
    ]
    expected = TEXT.replace("owner/model, commit: main", f"owner/model, commit: {'1' * 40}")
    expected = expected.replace('commit: "main"', f'commit: "{"2" * 40}"')
    expected = expected.replace("*same, commit: step1", f"*same, commit: {'4' * 40}")
    expected = expected.replace("step1", "3" * 40)
    assert file.read_text() == expected
    assert pins.pin("mine", file.parent.parent) == []
    assert file.read_text() == expected


def test_a_branch_that_is_not_there_leaves_the_file(file, commits):
    del commits["main/model", "step1", "model"]
    with pytest.raises(InputError, match="main/model at step1"):
        pins.pin("mine", file.parent.parent)
    assert file.read_text() == TEXT


def test_a_study_that_is_not_there_is_named(file):
    with pytest.raises(InputError, match=r"other\.yaml.*\n.*\n.*the YAML file of a study: mine"):
        pins.pin("other", file.parent.parent)
