"""params.yaml: what is refused, how, and that it is what it is composed from."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.errors import InputError
from pipeline.params import CONF, Study, check, compose, load, switch

ROOT = Path(__file__).parents[1]
Values = dict[str, Any]


@pytest.fixture(scope="module")
def tiny() -> Values:
    values: Values = YAML(typ="safe").load(ROOT / "params.yaml")
    return values


def test_params_yaml_is_the_composed_default_study(tmp_path: Path) -> None:
    compose({}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text()


@pytest.mark.parametrize("option", sorted(p.stem for p in (ROOT / CONF / "study").glob("*.yaml")))
def test_every_study_composes_and_is_called_as_its_file(option: str, tmp_path: Path) -> None:
    study = compose({"study": option}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    assert study.study == option
    assert load(tmp_path / "params.yaml") == study


def test_dvc_composes_the_same_bytes(tmp_path: Path) -> None:
    from dvc.utils.hydra import compose_and_dump

    compose({"seeds": "three"}, conf=ROOT / CONF, path=tmp_path / "ours.yaml")
    theirs = tmp_path / "theirs.yaml"
    compose_and_dump(theirs, str(ROOT / CONF), None, "config", str(ROOT / CONF), ["seeds=three"])
    assert (tmp_path / "ours.yaml").read_bytes() == theirs.read_bytes()


def test_three_seeds_triple_the_models(tmp_path: Path) -> None:
    one = compose({}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    three = compose({"seeds": "three"}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    assert len(three.models) == 3 * len(one.models)
    for original in one.models.values():
        alike = [m for m in three.models.values() if m.name.startswith(f"{original.name}-seed-")]
        assert [model.seed for model in alike] == [1, 2]
        assert {model.family for model in alike} == {original.family}
        assert all(model.training == original.training for model in alike)


def _set(path: str, value: object) -> Callable[[Values], None]:
    def edit(values: Values) -> None:
        *parents, last = path.split("/")
        for part in parents:
            values = values[part]
        values[last] = value

    return edit


def _delete(path: str) -> Callable[[Values], None]:
    def edit(values: Values) -> None:
        *parents, last = path.split("/")
        for part in parents:
            values = values[part]
        del values[last]

    return edit


MODEL = "models/tiny-pythia-8"
DOTTED = MODEL.replace("/", ".")
FAMILY = "families/tiny-pythia"

# name: (edit, what the message has to hold)
BAD = {
    "unknown key": (_set("evaluatoin", 1), ["evaluatoin", "did you mean evaluation?"]),
    "unknown nested key": (_set(f"{MODEL}/sead", 1), [f"{DOTTED}.sead", "did you mean seed?"]),
    "missing section": (_delete("run"), ["run", "nothing"]),
    "missing value": (_delete(f"{MODEL}/seed"), [f"{DOTTED}.seed", "nothing"]),
    "number as text": (_set("statistics/seed", "0"), ["statistics.seed", "'0'"]),
    "number with a fraction": (_set("statistics/seed", 200.5), ["200.5"]),
    "truth for a number": (_set("statistics/seed", True), ["statistics.seed", "True"]),
    "negative length": (_set(f"{FAMILY}/prefix_length", -1), ["prefix_length", "-1"]),
    "no suffix": (_set(f"{FAMILY}/suffix_length", 0), ["suffix_length", "0"]),
    "too long": (_set(f"{FAMILY}/suffix_length", 33), ["32 + suffix_length 33", "at most 64"]),
    "unknown dtype": (_set("evaluation/dtype", "fp8"), ["evaluation.dtype", "fp8"]),
    "not a number": (
        _set(f"{MODEL}/training/matrix_learning_rate", float("nan")),
        ["matrix_learning_rate", "nan"],
    ),
    "infinite": (
        _set(f"{MODEL}/training/matrix_learning_rate", float("inf")),
        ["matrix_learning_rate", "inf"],
    ),
    "slash in a name": (_set(f"{MODEL}/name", "a/b"), [f"{DOTTED}.name", "'a/b'"]),
    "parent folder as a name": (_set(f"{MODEL}/name", ".."), [f"{DOTTED}.name", "'..'"]),
    "command in a name": (_set(f"{MODEL}/name", "a; true"), [f"{DOTTED}.name", "a; true"]),
    "braces in a name": (_set(f"{MODEL}/name", "{model}"), [f"{DOTTED}.name"]),
    "newline in a name": (_set(f"{MODEL}/name", "a\nb"), [f"{DOTTED}.name"]),
    "trailing newline in a name": (_set(f"{MODEL}/name", "a\n"), [f"{DOTTED}.name"]),
    "empty name": (_set(f"{MODEL}/name", ""), [f"{DOTTED}.name"]),
    "study outside": (_set("study", "../tiny"), ["study", "../tiny"]),
    "dot in a key": (
        lambda v: v["models"].update({"tiny-1.4b": v["models"].pop("tiny-pythia-8")}),
        ["tiny-1.4b"],
    ),
    "key of another study": (
        lambda v: v["models"].update({"other-8": v["models"].pop("tiny-pythia-8")}),
        ["models.other-8", "a key that begins with tiny-"],
    ),
    "name used twice": (_set(f"{MODEL}/name", "tiny-neo-8"), ["a name of its own"]),
    "name used twice but for case": (_set(f"{MODEL}/name", "Tiny-Neo-8"), ["a name of its own"]),
    "no such family": (_set(f"{MODEL}/family", "mamba"), ["mamba", "pythia, gpt-neo"]),
    "seed beyond 63 bits": (_set(f"{MODEL}/seed", 2**70), [f"{DOTTED}.seed"]),
    "name that is another table's": (_set(f"{MODEL}/name", "a.documents"), ["a.documents"]),
    "never memorized": (_set(f"{FAMILY}/memorized_copies", 65), ["memorized_copies", "at most 64"]),
    "no such task": (_set("benchmarks/tasks", ["piqa"]), ["piqa", "tiny_piqa"]),
    "Pile samples for a trained model": (
        lambda v: v["families"]["tiny-pythia"].update(
            source="pile", input="study.json", memorized_copies=None
        ),
        [DOTTED, "samples of the text that the model was trained on"],
    ),
    "longer than a passage": (
        lambda v: v["families"].update(
            {
                "tiny-long": {
                    "name": "long",
                    "source": "pile",
                    "input": "study.json",
                    "prefix_length": 151,
                    "suffix_length": 50,
                    "memorized_copies": None,
                }
            }
        ),
        ["families.tiny-long", "at most 150 and 50"],
    ),
    "no models": (_set("models", {}), ["models"]),
    "a list of models": (_set("models", ["a"]), ["models"]),
    "no corpus": (_set("corpus", {}), ["a section corpus.tiny"]),
    "corpus of another study": (
        lambda v: v["corpus"].update({"other": v["corpus"].pop("tiny")}),
        ["corpus.other", "call the corpus by the study's name"],
    ),
    "heads that do not divide": (_set(f"{MODEL}/training/n_heads", 5), ["n_heads 5"]),
    "no copies for a split": (_set(f"{FAMILY}/memorized_copies", None), ["memorized_copies"]),
    "no tasks": (_set("benchmarks/tasks", []), ["benchmarks.tasks"]),
    "a task twice": (_set("benchmarks/tasks", ["piqa", "piqa"]), ["piqa twice"]),
    "limit of nothing": (_set("benchmarks/limit", 0), ["benchmarks.limit"]),
    "zero threads": (_set("run/threads", 0), ["run.threads"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_params_are_refused(tiny: Values, case: str) -> None:
    edit, expected = BAD[case]
    values = copy.deepcopy(tiny)
    edit(values)
    with pytest.raises(InputError) as caught:
        check(values)
    message = str(caught.value)
    for part in expected:
        assert part in message
    for word in ("got:", "expected:", "remedy:"):
        assert word in message


def test_all_problems_come_at_once(tiny: Values) -> None:
    values = copy.deepcopy(tiny)
    _set("evaluation/dtype", "fp8")(values)
    _set("statistics/seed", -1)(values)
    _set("run/treads", 2)(values)
    with pytest.raises(InputError) as caught:
        check(values)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "study: [", "a: 1\na: 2", "\0", "study: !!python/x"]
)
def test_what_is_no_study_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"params\.yaml"):
        load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="python -m pipeline study tiny"):
        load(tmp_path / "params.yaml")


def test_an_unknown_choice_is_refused_and_nothing_written(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    with pytest.raises(InputError) as caught:
        compose({"study": "tinny", "sead": "one"}, conf=ROOT / CONF, path=path)
    assert len(caught.value.problems) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_bad_study_file_leaves_params_as_they_are(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "study").mkdir(parents=True)
    (conf / "config.yaml").write_text("defaults: [{study: bad}, _self_]\n")
    (conf / "study" / "bad.yaml").write_text("# @package _global_\nstudy: bad\n")
    path = tmp_path / "params.yaml"
    path.write_text("as it was")
    with pytest.raises(InputError):
        compose({"study": "bad"}, conf=conf, path=path)
    assert path.read_text() == "as it was"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["conf", "params.yaml"]


def test_naming_the_study_in_force_keeps_its_edits(
    tiny: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = copy.deepcopy(tiny)
    values["statistics"]["seed"] = 777
    YAML().dump(values, tmp_path / "params.yaml")
    assert switch({"study": "tiny"}, dry_run=True).statistics.seed == 777
    with pytest.raises(InputError, match="python -m pipeline study other seeds=three"):
        switch({"study": "other", "seeds": "three"}, dry_run=True)


def test_every_value_is_described() -> None:
    schema = Study.model_json_schema()
    undescribed = [
        f"{section}.{name}"
        for section, definition in schema["$defs"].items()
        for name, value in definition.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert undescribed == []


@pytest.mark.parametrize("command", [["check"], ["memorization", "tiny-pythia-8"], ["report"]])
def test_every_command_checks_first(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "params.yaml").write_text("study: tiny\nrun: {treads: 1}\n")
    run = subprocess.run(
        [sys.executable, "-m", "pipeline", *command],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert "run.treads" in run.stderr
    assert "Traceback" not in run.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]


def test_what_the_schema_repeats_is_true() -> None:
    """The schema loads in a moment, so it does not import the modules that know."""
    from pipeline.params import GENERATED_TASKS, PILE_PREFIX, PILE_SUFFIX
    from pipeline.samples import pile, tasks

    assert set(GENERATED_TASKS) == set(tasks.TASKS)
    assert (PILE_PREFIX, PILE_SUFFIX) == (pile.PREFIX_LENGTH, pile.SUFFIX_LENGTH)
