"""One member's results become everyone's: pushed to a remote, pulled into a fresh clone."""

from __future__ import annotations

import getpass
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.conftest import Server
from tests.dag.conftest import Project, stub_project
from tests.project import GIT


@dataclass(frozen=True)
class Remote:
    """Where results are kept, and the options of it that no other member shares."""

    url: str
    own: dict[str, str] = field(default_factory=dict)

    def introduce(self, project: Project) -> None:
        for name, value in self.own.items():
            project.dvc("remote", "modify", "--local", "store", name, value)


@pytest.fixture(params=["folder", "ssh"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    store = tmp_path / "store"
    if request.param == "folder":
        return Remote(str(store))
    server: Server = request.getfixturevalue("ssh_server")
    own = {"user": getpass.getuser(), "keyfile": str(server.key)}
    return Remote(f"ssh://127.0.0.1:{server.port}{store}", own)


def _commit(project: Project) -> None:
    project.command("git", "add", "dvc.lock", "params.yaml", ".dvc/config")
    project.command(*GIT, "commit", "--quiet", "--message", "results")


def _set_seed(project: Project, before: int, after: int) -> None:
    old, new = (f"statistics:\n  seed: {seed}" for seed in (before, after))
    project.replace("params.yaml", old, new)


@pytest.fixture(scope="module")
def two_commits(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study with the results of one seed, and before that with those of another."""
    project = stub_project(tmp_path_factory.mktemp("member"))
    for before, after in ((0, 1), (1, 0)):
        _set_seed(project, before, after)
        project.dvc("repro")
        _commit(project)
    return project


def test_a_clone_pulls_and_has_nothing_to_run(
    two_commits: Project, remote: Remote, tmp_path: Path
) -> None:
    member = Project(tmp_path / "member")
    shutil.copytree(two_commits.root, member.root, symlinks=True)
    member.dvc("remote", "add", "--default", "store", remote.url)
    _commit(member)
    remote.introduce(member)
    for commit in ("HEAD~2", "HEAD"):  # as they came about
        member.command("git", "checkout", "--quiet", commit, "--", "dvc.lock", "params.yaml")
        member.dvc("push", "--run-cache")
    assert any((tmp_path / "store").rglob("*")), "the results lie where the remote is"

    clone = Project(tmp_path / "clone")
    member.command("git", "clone", "--quiet", ".", str(clone.root))
    remote.introduce(clone)
    clone.dvc("pull", "--run-cache")
    clone.assert_idle()
    _set_seed(clone, 0, 1)
    assert "aggregate@mini" in clone.dvc("status").stdout, "another result is asked for"
    clone.describe()
    clone.dvc("repro", "--pull")
    # an output that persists is not restored, and the check takes a second
    assert set(clone.ran()) <= {"check@mini"}, "the member has computed it once"
    assert "up to date" in clone.dvc("status").stdout
