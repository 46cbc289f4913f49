"""Where a report comes from, as far as it can be told."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from pipeline.measure import metrics
from pipeline.report import provenance
from pipeline.workflow import tables
from tests.analysis import synthetic


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "file").write_text("1")
    for arguments in (
        ["init", "--quiet"],
        ["remote", "add", "origin", "https://me:secret@example.org/x.git"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "one"],
    ):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)
    return folder


def test_git_is_told_without_secrets(repository, tmp_path, monkeypatch):
    clean = provenance.git_state(repository) or {}
    assert len(clean["commit"]) == 40
    assert (clean["remote"], clean["dirty"]) == ("https://example.org/x.git", False)
    (repository / "file").write_text("2")
    (repository / "with space").write_text("2")
    dirty = provenance.git_state(repository) or {}
    assert (dirty["dirty"], dirty["changed"][0]) == (True, "file")
    assert provenance.git_state(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", "/nowhere")  # no git on the machine
    assert provenance.git_state(repository) is None


def test_an_audit_differs_by_the_files_that_it_links_alone(repository, tmp_path, monkeypatch):
    (repository / "other").write_text("not committed, and no part of the audit")
    monkeypatch.chdir(tmp_path)
    Path("linked").symlink_to(repository / "file")
    state = provenance.git_state(repository) or {}
    assert (state["dirty"], state["changed"]) == (False, [])
    (repository / "file").write_text("2")
    state = provenance.git_state(repository) or {}
    assert (state["dirty"], state["changed"]) == (True, ["file"])


def test_no_part_of_a_password_is_told():
    for local in ("/srv/study", "../study", "file:///srv/study", r"C:\study", ""):
        assert provenance._address(local) == "", local
    assert provenance._address("git@example.org:x.git") == "git@example.org:x.git"
    query = "https://h.org/x.git?private_token=s3cret#main"
    assert provenance._address(query) == "https://h.org/x.git"
    for user in ("", "me@", "me:p@ssword@", "token:x@y@"):
        assert provenance._address(f"https://{user}h.org/a@b") == "https://h.org/a@b"


def test_commands_start_from_the_commit():
    git = {"commit": "c" * 40, "remote": "https://example.org/x.git"}
    assert provenance.commands(git, ["make run STUDY=tiny"]) == [
        "git clone https://example.org/x.git study && cd study",
        f"git checkout {'c' * 40}",
        "make run STUDY=tiny",
    ]
    assert provenance.commands(None, ["make run"]) == ["make run"]
    assert provenance.commands(git, None) == []


def test_everything_is_told(tmp_path, repository):
    study = synthetic.study(models={"tiny-neo-8": ("gpt-neo", 8)}, per_copies=8)
    study.write(tmp_path)
    path = tmp_path / "memorization" / "tiny-neo-8.parquet"
    made_by = {"model": "tiny-neo-8", "evaluation": {"dtype": "float32"}}
    tables.write(tables.read(path, metrics.MEMORIZATION), path, metrics.MEMORIZATION, made_by)
    (tmp_path / "samples" / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "datasets").mkdir()
    fetched = {"piqa": {"repo": "r", "commit": "c", "files": {"f": "0" * 64}}}
    (tmp_path / "datasets" / "datasets.json").write_text(json.dumps(fetched))
    costs = tmp_path / "cost" / "memorization"
    costs.mkdir(parents=True)
    took = {"wall_seconds": 2.5, "device": "cpu", "events": {"recomputed": 3}}
    (costs / "tiny-neo-8.json").write_text(json.dumps(took))
    (costs / "torn.json").write_text("{")
    manifests = list(study.manifests.values())
    given = {"params": {"seed": 0}, "versions": {"torch": "2"}, "commands": ["make run"]}
    whole = provenance.collect("tiny", tmp_path, manifests, given, repository)
    assert json.loads(json.dumps(whole)) == whole
    assert (whole["params"], whole["versions"]) == ({"seed": 0}, {"torch": "2"})
    assert whole["commands"][-1] == "make run"
    assert whole["models"][0]["files"] == {"model.safetensors": "0" * 64}
    assert whole["datasets"] == fetched
    assert whole["runs"] == {"memorization": {"tiny-neo-8": took}}
    told = whole["tables"]["memorization/tiny-neo-8.parquet"]
    assert told["determined_by"] == made_by
    assert told["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "error" in whole["tables"]["samples/broken.parquet"]
    assert "error" in whole["tables"]["summary.parquet"]
    assert "2501.05078" in whole["citation"]
    assert whole["git"]["dirty"] is False
    nothing = provenance.collect("x", tmp_path / "nowhere", [], {}, tmp_path)
    found = [nothing[name] for name in ("git", "commands", "datasets", "runs")]
    assert found == [None, [], None, {}]
