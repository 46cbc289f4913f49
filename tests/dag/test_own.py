"""A study of a user's own things, without what is optional: one DAG under both engines."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.dag.conftest import Project

pytestmark = pytest.mark.slow

ALL = {
    *("check@own", "samples@own-text", "check_results@own", "aggregate@own"),
    *("checkpoint@own-model", "interventions@own-model", "tokens@own-model"),
    *("memorization@own-model", "figures@own", "report@own"),
}
SAMPLES = ALL - {"check@own", "checkpoint@own-model", "interventions@own-model"}
OPTIONAL = ("benchmarks", "divergence", "generations", "theory")


@pytest.fixture(scope="module")
def finished_own(stubs: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study `own`, run once by snakemake. Not to be changed: take `own`."""
    fresh = stubs.copied(tmp_path_factory.mktemp("own") / "project")
    folder = fresh.root / "my model's $(folder) {x} 100%"
    folder.mkdir()
    (folder / "config.json").write_text("1")
    text = fresh.root / "a 'text' ${x} #1 é.csv"
    text.write_text("1")
    params, yaml = fresh.root / "params.yaml", YAML(typ="safe")
    study = yaml.load(params)
    samples = {"source": "file", "path": text.name, "tokenizer": "model-1.0"}
    family = {"name": "text", "prefix_length": 2, "suffix_length": 2, "samples": samples}
    checkpoint = {"source": "folder", "path": folder.name}
    values = {
        **{"study": "own", "corpus": {}, "datasets": {}, "families": {"own-text": family}},
        "models": {"own-model": {"name": "model-1.0", "family": "text", "checkpoint": checkpoint}},
        "benchmarks": None,  # the others are missing
        "interventions": study["interventions"],
        "evaluation": {"text": study["evaluation"]["pythia"]},
        **{each: study[each] for each in ("statistics", "report", "run")},
    }
    yaml.dump(values, params)
    script = "from pipeline.study.composition import load; load()"
    assert "python -m pipeline study" in fresh.said("python", "-c", script, check=False)
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
