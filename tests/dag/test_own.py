"""A study of a user's own things, without what is optional: one DAG under both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.dag.conftest import Project, stub_project

pytestmark = pytest.mark.slow

ALL = {
    *("check@own", "samples@own-text", "check_results@own", "aggregate@own"),
    *("checkpoint@own-model", "interventions@own-model", "tokens@own-model"),
    *("memorization@own-model", "figures@own", "report@own"),
}
SAMPLES = ALL - {"check@own", "checkpoint@own-model", "interventions@own-model"}
OPTIONAL = ("benchmarks", "divergence", "generations", "theory")


@pytest.fixture(scope="module")
def finished_own(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study `own`, run once by snakemake. Not to be changed: take `own`."""
    fresh = stub_project(tmp_path_factory.mktemp("own"))
    folder = fresh.root / "my model's $(folder) {x} 100%"
    folder.mkdir()
    (folder / "config.json").write_text("1")
    text = fresh.root / "a 'text' ${x} #1 é.csv"
    text.write_text("1")
    study = YAML(typ="safe").load((fresh.root / "params.yaml").read_text())
    values = {
        "study": "own",
        "corpus": {},
        "datasets": {},
        "families": {
            "own-text": {
                "name": "text",
                "prefix_length": 2,
                "suffix_length": 2,
                "samples": {"source": "file", "path": text.name, "tokenizer": "model-1.0"},
            }
        },
        "models": {
            "own-model": {
                "name": "model-1.0",
                "family": "text",
                "checkpoint": {"source": "folder", "path": folder.name},
            }
        },
        "benchmarks": None,  # the others are missing
        "interventions": study["interventions"],
        "evaluation": {"text": study["evaluation"]["pythia"]},
        **{each: study[each] for each in ("statistics", "report", "run")},
    }
    with (fresh.root / "params.yaml").open("w") as file:
        YAML(typ="safe").dump(values, file)
    refused = fresh.command(
        "python", "-c", "from pipeline.study.composition import load; load()", check=False
    )
    assert "python -m pipeline study" in refused.stderr
    fresh.derive()
    fresh.describe()
    fresh.snakemake()
    return fresh


@pytest.fixture
def own(finished_own: Project, tmp_path: Path) -> Project:
    """A copy of the finished project, to be changed."""
    return finished_own.copied(tmp_path / "own")


def test_what_a_study_leaves_out_is_not_there(own: Project) -> None:
    assert set(own.ran()) == ALL
    own.assert_idle()
    assert set(own.describe()) == ALL
    assert not any((own.root / "data/own" / each).exists() for each in OPTIONAL)


@pytest.mark.parametrize("engine", ["snakemake", "dvc"])
def test_a_change_of_what_is_the_users_is_noticed(own: Project, engine: str) -> None:
    own.ran()
    next(own.root.glob("a 'text'*")).write_text("2")
    own.run(engine)
    assert set(own.ran()) == SAMPLES
    (next(own.root.glob("my model's*")) / "tokenizer.json").write_text("2")
    own.run(engine)
    assert set(own.ran()) == ALL - {"check@own"}
    own.assert_idle()


def test_a_file_that_is_gone_is_named(own: Project) -> None:
    path: Path = next(own.root.glob("a 'text'*"))
    path.unlink()
    done = own.dvc("repro", check=False)
    assert done.returncode
    assert path.name in done.stderr
