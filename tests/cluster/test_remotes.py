"""One member's results become everyone's: pushed to a remote, pulled into a fresh clone."""

import getpass
from pathlib import Path

import pytest

from tests.dag.conftest import Project, stub_project
from tests.project import GIT

Remote = tuple[str, dict[str, str]]
"""Where results are kept, and the options of it that no other member shares."""


@pytest.fixture(params=["folder", "ssh"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    store = tmp_path / "store"
    if request.param == "folder":
        return str(store), {}
    port, key = request.getfixturevalue("ssh_server")
    return f"ssh://127.0.0.1:{port}{store}", {"user": getpass.getuser(), "keyfile": str(key)}


def _introduce(remote: Remote, project: Project) -> None:
    for name, value in remote[1].items():
        project.dvc("remote", "modify", "--local", "store", name, value)


def _commit(project: Project) -> None:
    project.command("git", "add", "dvc.lock", "params.yaml", ".dvc/config")
    project.command(*GIT, "commit", "--quiet", "--message", "results")


@pytest.fixture(scope="module")
def two_commits(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study with the results of one seed, and before that with those of another."""
    project = stub_project(tmp_path_factory.mktemp("member"))
    for seed in (1, 0):
        project.set("statistics.seed", seed)
        project.dvc("repro")
        _commit(project)
    return project


def test_a_clone_pulls_and_has_nothing_to_run(
    two_commits: Project, remote: Remote, tmp_path: Path
) -> None:
    member = two_commits.copied(tmp_path / "member")
    member.dvc("remote", "add", "--default", "store", remote[0])
    _commit(member)
    _introduce(remote, member)
    for commit in ("HEAD~2", "HEAD"):  # as they came about
        member.command("git", "checkout", "--quiet", commit, "--", "dvc.lock", "params.yaml")
        member.dvc("push", "--run-cache")
    assert any((tmp_path / "store").rglob("*")), "the results lie where the remote is"

    clone = Project(tmp_path / "clone")
    member.command("git", "clone", "--quiet", ".", str(clone.root))
    _introduce(remote, clone)
    clone.dvc("pull", "--run-cache")
    clone.assert_idle()
    clone.set("statistics.seed", 1)
    assert "aggregate@mini" in clone.dvc("status").stdout, "another result is asked for"
    clone.describe()
    clone.dvc("repro", "--pull")
    # an output that persists is not restored, and the check takes a second
    assert set(clone.ran()) <= {"check@mini"}, "the member has computed it once"
    assert "up to date" in clone.dvc("status").stdout
