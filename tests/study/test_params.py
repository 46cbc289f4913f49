"""params.yaml: what is refused, how, and that it is what it is composed from."""

from __future__ import annotations

import copy
import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.interventions.interventions import sweep
from pipeline.stages import registry
from pipeline.study.composition import CONF, check, compose, load, switch, write
from pipeline.study.schema import Study
from pipeline.workflow.errors import InputError

ROOT = Path(__file__).parents[2]
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
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / CONF, conf)
    file = conf / "study" / f"{option}.yaml"
    if option in ("hubble", "pythia-steps"):  # their commits are looked up by whoever runs them
        with pytest.raises(InputError, match="python -m pipeline pin STUDY"):
            compose({"study": option}, conf=conf, path=tmp_path / "params.yaml")
        numbers = itertools.count(10**39)
        text = re.sub(
            r"commit: (?:main|step\d+)", lambda _: f"commit: '{next(numbers)}'", file.read_text()
        )
        file.write_text(text)
    study = compose({"study": option}, conf=conf, path=tmp_path / "params.yaml")
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
        assert [model.checkpoint.seed for model in alike] == [1, 2]
        assert {model.family for model in alike} == {original.family}
        assert all(
            model.checkpoint.model_copy(update={"seed": 0}) == original.checkpoint
            for model in alike
        )


def test_the_steps_of_a_run_are_one_training(tmp_path: Path) -> None:
    study = compose({"study": "steps"}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    assert study.steps == [
        (f"step-{step}", "tiny-pythia-8", step) for step in (100, 200, 300, 400, 457)
    ]
    first, *others = study.models.values()
    assert all(model.checkpoint == first.checkpoint for model in others)
    assert compose({}, conf=ROOT / CONF, path=tmp_path / "params.yaml").steps == []


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
CHECKPOINT = f"{MODEL}/checkpoint"
FAMILY = "families/tiny-pythia"
THEORY = "theory/tiny"

PIN = {"repo": "owner/name", "commit": "0" * 40}
CONTROL = {"documents": PIN, "tokenizer": PIN, "n": 1}
DRAWN = {"seed": 0, "n_memorized": 1, "control": CONTROL}
THREE = {f"train_{part}.npy": "0" * 64 for part in ("preprefix", "prefix", "suffix")}
TWO = dict(list(THREE.items())[:2])
PILE = {"source": "pile", "url": "https://example.org/files", "sha256": THREE, **DRAWN}
PYTHIA = {"source": "pythia", "evals": PIN, "splits": ["duped.1.4b"], **DRAWN}
LONG = {"name": "long", "prefix_length": 151, "suffix_length": 50}
WEIGHTS = {"package": "boxed==1.0", "sha256": "0" * 64, "file": "boxed/weights.gguf"}
HUB = {"source": "hub", "billions": 1.4, **PIN}
CONTINUED = {
    **{"source": "continued", "seed": 0, "base": "tiny-pythia-12", "block": 0, "part": "mlp"},
    **{"batch_rows": 1, "epochs": 1, "most_rounds": 1, "recited": 1, "learning_rate": 0.1},
}
DATASET = {**PIN, "split": "test", "documents": 8, "columns": ["goal"]}


def _of_run(step: object, **others: object) -> Callable[[Values], None]:
    """tiny-pythia-8 is a step of a run, and so is a changed copy of it, at step 10."""

    def edit(values: Values) -> None:
        model = values["models"]["tiny-pythia-8"]
        model.update(run="a", step=step)
        values["models"]["tiny-again"] = model | {"name": "again", "step": 10} | others

    return edit


# name: (edit, what the message has to hold)
BAD = {
    "unknown key": (_set("evaluatoin", 1), ["evaluatoin", "did you mean evaluation?"]),
    "unknown nested key": (_set(f"{MODEL}/nane", 1), [f"{DOTTED}.nane", "did you mean name?"]),
    "unknown key of a source": (
        _set(f"{CHECKPOINT}/sead", 1),
        [f"{DOTTED}.checkpoint.sead", "did you mean seed?"],
    ),
    "no source": (
        _delete(f"{CHECKPOINT}/source"),
        [f"{DOTTED}.checkpoint.source", "nothing", "name one of these"],
    ),
    "an unknown source": (
        _set(f"{CHECKPOINT}/source", "web"),
        [f"{DOTTED}.checkpoint.source", "web", "'training', 'hub', 'gguf', 'folder', 'continued'"],
    ),
    "a base that is not there": (
        _set(CHECKPOINT, CONTINUED | {"base": "nobody"}),
        [f"{DOTTED}.checkpoint.base", "nobody", "source: training; tiny-pythia-12"],
    ),
    "a base that itself goes on": (
        _set(CHECKPOINT, CONTINUED | {"base": "tiny-pythia-8"}),
        [f"{DOTTED}.checkpoint.base", "tiny-pythia-8", "name one, or add it"],
    ),
    "a block that the base has not": (
        _set(CHECKPOINT, CONTINUED | {"block": 12}),
        [f"{DOTTED}.checkpoint.block", "12", "0 to 11"],
    ),
    "a part that no block has": (
        _set(CHECKPOINT, CONTINUED | {"part": "norm"}),
        [f"{DOTTED}.checkpoint.part", "norm"],
    ),
    "a step of no run": (_set(f"{MODEL}/step", 10), [DOTTED, "run None, step 10"]),
    "a run without a step": (_set(f"{MODEL}/run", "a"), [DOTTED, "run a, step None"]),
    "a negative step": (_of_run(-1), [f"{DOTTED}.step", "-1"]),
    "a step of continued training": (
        _of_run(5, checkpoint=CONTINUED),
        ["models.tiny-again", "step 10 of a checkpoint from continued"],
    ),
    "a step twice": (
        _of_run(10),
        ["models.tiny-again, of the run a as tiny-pythia-8", "step 10, too", "another step"],
    ),
    "a run of two families": (
        _of_run(5, family="gpt-neo"),
        ["models.tiny-again, of the run a", "family gpt-neo"],
    ),
    "a run of two trainings": (
        _of_run(5, checkpoint=HUB),
        ["models.tiny-again, of the run a", "another checkpoint", "the same training"],
    ),
    "a checkpoint twice in a run": (
        lambda v: (_set(CHECKPOINT, HUB)(v), _of_run(5)(v)),
        ["models.tiny-again, of the run a", "the same checkpoint", "that of its own step"],
    ),
    "missing section": (_delete("run"), ["run", "nothing"]),
    "missing value": (_delete("benchmarks/limit"), ["benchmarks.limit", "nothing"]),
    "missing seed": (_delete(f"{CHECKPOINT}/seed"), [f"{DOTTED}.checkpoint.seed", "nothing"]),
    "number as text": (_set("statistics/seed", "0"), ["statistics.seed", "'0'"]),
    "number with a fraction": (_set("statistics/seed", 200.5), ["200.5"]),
    "truth for a number": (_set("statistics/seed", True), ["statistics.seed", "True"]),
    "negative length": (_set(f"{FAMILY}/prefix_length", -1), ["prefix_length", "-1"]),
    "no suffix": (_set(f"{FAMILY}/suffix_length", 0), ["suffix_length", "0"]),
    "too long": (_set(f"{FAMILY}/suffix_length", 33), ["32 + suffix_length 33", "at most 64"]),
    "unknown dtype": (
        _set("evaluation/pythia/dtype", "fp8"),
        ["evaluation.pythia.dtype", "fp8"],
    ),
    "not a number": (
        _set(f"{CHECKPOINT}/matrix_learning_rate", float("nan")),
        ["matrix_learning_rate", "nan"],
    ),
    "infinite": (
        _set(f"{CHECKPOINT}/matrix_learning_rate", float("inf")),
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
    "seed beyond 63 bits": (_set(f"{CHECKPOINT}/seed", 2**70), [f"{DOTTED}.checkpoint.seed"]),
    "name that is another table's": (_set(f"{MODEL}/name", "a.documents"), ["a.documents"]),
    "never memorized": (
        _set(f"{FAMILY}/samples/memorized_copies", 65),
        ["families.tiny-pythia.samples.memorized_copies", "at most 64"],
    ),
    "no such task": (_set("benchmarks/tasks", ["piqa"]), ["piqa", "tiny_piqa"]),
    "Pile samples for a trained model": (
        _set(f"{FAMILY}/samples", PILE),
        [DOTTED, "samples of the text that the model was trained on"],
    ),
    "longer than a passage of the Pile": (
        lambda v: v["families"].update({"tiny-long": LONG | {"samples": PILE}}),
        ["families.tiny-long", "at most 150 and 50"],
    ),
    "longer than a sequence of Pythia's": (
        lambda v: v["families"].update({"tiny-long": LONG | {"samples": PYTHIA}}),
        ["families.tiny-long", "at most 32 and 32"],
    ),
    "two of the three files of the Pile": (
        lambda v: v["families"].update({"tiny-long": LONG | {"samples": PILE | {"sha256": TWO}}}),
        ["families.tiny-long.samples.sha256", "3 items"],
    ),
    "a split that Pythia has not": (
        lambda v: v["families"].update(
            {"tiny-long": LONG | {"samples": PYTHIA | {"splits": ["1.4b"]}}}
        ),
        ["families.tiny-long.samples.splits.0", "1.4b"],
    ),
    "a branch for a commit": (
        _set(CHECKPOINT, HUB | {"commit": "main"}),
        [f"{DOTTED}.checkpoint.commit", "main"],
    ),
    "a repository without an owner": (
        _set(CHECKPOINT, HUB | {"repo": "pythia-1.4b"}),
        [f"{DOTTED}.checkpoint.repo", "pythia-1.4b"],
    ),
    "a repository that climbs": (
        _set(CHECKPOINT, HUB | {"repo": "../x"}),
        [f"{DOTTED}.checkpoint.repo", "../x"],
    ),
    "a seed of what is fetched": (
        _set(CHECKPOINT, HUB | {"seed": 0}),
        [f"{DOTTED}.checkpoint.seed", "the unknown key seed"],
    ),
    "a size of what is trained": (
        _set(f"{CHECKPOINT}/billions", 1.4),
        [f"{DOTTED}.checkpoint.billions", "the unknown key billions"],
    ),
    "no size of what is fetched": (
        _set(CHECKPOINT, {key: value for key, value in HUB.items() if key != "billions"}),
        [f"{DOTTED}.checkpoint.billions", "nothing"],
    ),
    "records for a fetched model": (
        _set(CHECKPOINT, HUB),
        [DOTTED, "a checkpoint from hub, samples from records"],
    ),
    "a precision for no family": (
        lambda v: v["evaluation"].update({"pythie": v["evaluation"].pop("pythia")}),
        ["evaluation", "gpt-neo, pythie", "pythia, gpt-neo"],
    ),
    "a floor above all": (
        _set("evaluation/pythia/baseline_floor", 90.0),
        ["evaluation.pythia.baseline_floor", "90.0"],
    ),
    "an unknown way below the floor": (
        _set("evaluation/pythia/below_floor", "ignore"),
        ["evaluation.pythia.below_floor", "ignore"],
    ),
    "datasets without the tasks": (
        _set("corpus", {}),
        ["benchmarks.tasks", "tiny_arc_easy", "datasets.tiny names datasets for: none"],
    ),
    "datasets of another study": (
        _set("datasets", {"other": {"piqa": DATASET}}),
        ["datasets.other", "call it by the study's name"],
    ),
    "no documents": (
        _set("datasets", {"tiny": {"piqa": DATASET | {"documents": 0}}}),
        ["datasets.tiny.piqa.documents", "0"],
    ),
    "no prompts": (_set("generations/prompts", []), ["generations.prompts"]),
    "an empty prompt": (_set("generations/prompts", [""]), ["generations.prompts.0"]),
    "a depth below the last block": (_set("generations/depths", [1.5]), ["generations.depths.0"]),
    "nothing to generate": (_set("generations/new_tokens", 0), ["generations.new_tokens"]),
    "no models": (_set("models", {}), ["models"]),
    "a list of models": (_set("models", ["a"]), ["models"]),
    "no corpus": (_set("corpus", {}), ["a section corpus.tiny"]),
    "a world without words": (
        _set("corpus/tiny/vocabulary", None),
        ["corpus.tiny", "vocabulary None", "or weights, for passages"],
    ),
    "a world and passages": (
        _set("corpus/tiny/weights", WEIGHTS),
        ["corpus.tiny", "weights boxed==1.0", "or weights, for passages"],
    ),
    "passages for a model that is trained from scratch": (
        lambda v: v["corpus"]["tiny"].update(weights=WEIGHTS, vocabulary=None, world_tokens=None),
        [f"{DOTTED}, weights", "none", "those of the corpus: boxed==1.0"],
    ),
    "weights that any version may have": (
        _set("corpus/tiny/weights", WEIGHTS | {"package": "boxed"}),
        ["corpus.tiny.weights.package", "boxed"],
    ),
    "a file out of its package": (
        _set("corpus/tiny/weights", WEIGHTS | {"file": "../a.gguf"}),
        ["corpus.tiny.weights.file", "../a.gguf"],
    ),
    "corpus of another study": (
        lambda v: v["corpus"].update({"other": v["corpus"].pop("tiny")}),
        ["corpus.other", "call it by the study's name"],
    ),
    "heads that do not divide": (_set(f"{CHECKPOINT}/n_heads", 5), ["n_heads 5"]),
    "no copies for a split": (
        _set(f"{FAMILY}/samples/memorized_copies", None),
        ["samples.memorized_copies"],
    ),
    "no tasks": (_set("benchmarks/tasks", []), ["benchmarks.tasks"]),
    "a task twice": (_set("benchmarks/tasks", ["piqa", "piqa"]), ["piqa twice"]),
    "limit of nothing": (_set("benchmarks/limit", 0), ["benchmarks.limit"]),
    "zero threads": (_set("run/threads", 0), ["run.threads"]),
    "no shard": (_set("run/shard_minutes", 0), ["run.shard_minutes"]),
    "more threads than a machine has": (_set("run/threads", 2**63 - 1), ["run.threads", "1024"]),
    "more tokens than can be counted": (_set("run/token_budget", 2**31), ["run.token_budget"]),
    "more text than there is": (_set("corpus/tiny/world_tokens", 10**30), ["world_tokens"]),
    "more shots than documents": (_set("benchmarks/num_fewshot", 10**30), ["num_fewshot"]),
    "more copies than can be counted": (_set("corpus/tiny/records", {1: 2**31}), ["records.1"]),
    "a context without end": (
        _set(f"{THEORY}-constructive/context", 10**30),
        ["context"],
    ),
    "loads without end": (_set(f"{THEORY}-constructive/loads", [1e300]), ["loads.0"]),
    "a size without end": (
        _set(CHECKPOINT, HUB | {"billions": float("inf")}),
        [f"{DOTTED}.checkpoint.billions"],
    ),
    "no ranks": (
        _set(f"{THEORY}-low-rank/ranks", []),
        ["tiny-low-rank.ranks", "at least 1"],
    ),
    "no mistakes": (_set(f"{THEORY}-lookup/mistakes", []), ["theory.tiny-lookup.mistakes"]),
    "no loads": (_set(f"{THEORY}-constructive/loads", []), ["theory.tiny-constructive.loads"]),
    "a rank twice": (_set(f"{THEORY}-low-rank/ranks", [2, 4, 2]), ["ranks", "2 twice"]),
    "a share twice": (
        _set(f"{THEORY}-constructive/unsolved", [0, 0.0]),
        ["theory.tiny-constructive.unsolved", "0.0 twice"],
    ),
    "a seed twice": (
        _set(f"{THEORY}-lookup/seeds", [0, 0]),
        ["tiny-lookup.seeds", "0 twice"],
    ),
    "a depth twice": (_set("generations/depths", [0, 1, 1]), ["generations.depths", "1.0 twice"]),
    "a prompt twice": (
        _set("generations/prompts", ["a", "a"]),
        ["generations.prompts", "'a' twice"],
    ),
    "a split of Pythia's twice": (
        lambda v: v["families"].update(
            {"tiny-long": LONG | {"samples": PYTHIA | {"splits": ["duped.1.4b"] * 2}}}
        ),
        ["families.tiny-long.samples.splits", "twice"],
    ),
    "a null byte in a folder": (_set("run/pile_folder", "a\0b"), ["run.pile_folder"]),
    "a line break in a folder": (_set("run/pile_folder", "a\n"), ["run.pile_folder"]),
    "no interventions": (_set("interventions", []), ["interventions", "at least 1"]),
    "an intervention twice": (
        _set("interventions", [{"blocks": "each"}, {"blocks": "each", "edit": "identity"}]),
        ["interventions", "twice"],
    ),
    "a name twice": (
        _set("interventions", [{"blocks": "each"}, {"blocks": [3]}]),
        ["interventions, of models.tiny-pythia-8", "block-03 twice"],
    ),
    "an unknown edit": (
        _set("interventions", [{"blocks": "each", "edit": "remove"}]),
        ["interventions.0", "edit 'remove'", "one of"],
    ),
    "an unknown group": (
        _set("interventions", [{"blocks": "halves"}]),
        ["interventions.0", "blocks 'halves'", "a list, or one of"],
    ),
    "first without k": (
        _set("interventions", [{"blocks": "first"}]),
        ["interventions.0", "k None", "k with first"],
    ),
    "heads without the edit": (
        _set("interventions", [{"blocks": [1], "heads": [0]}]),
        ["interventions.0", "the edit `heads` goes with"],
    ),
    "an unknown key of an intervention": (
        _set("interventions", [{"block": "each"}]),
        ["interventions.0.block", "did you mean blocks?"],
    ),
    "a negative block": (_set("interventions", [{"blocks": [-1]}]), ["interventions.0.blocks"]),
    "a block beyond the last": (
        _set("interventions", [{"blocks": [8]}]),
        ["of models.tiny-pythia-8", "block 8", "0 to 7", "params.yaml"],
    ),
    "a head beyond the last": (
        _set("interventions", [{"blocks": [7], "heads": [2], "edit": "heads"}]),
        ["of models.tiny-pythia-8", "head 2", "0 to 1"],
    ),
    "more blocks than there are": (
        _set("interventions", [{"blocks": "last", "k": 9}]),
        ["of models.tiny-pythia-8", "last 9 blocks", "has 8"],
    ),
    "more draws than there are": (
        _set("interventions", [{"blocks": "random", "k": 1, "draws": 9}]),
        ["of models.tiny-pythia-8", "9 random draws"],
    ),
    "no number to decode": (
        _set("evaluation/pythia/decode", 0),
        ["evaluation.pythia.decode", "0"],
    ),
    "an unknown word to decode": (
        _set("evaluation/pythia/decode", "some"),
        ["evaluation.pythia.decode", "some"],
    ),
    "a blank folder": (_set("run/pile_folder", " "), ["run.pile_folder"]),
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


def test_every_kind_of_intervention_is_taken(tiny: Values) -> None:
    lines = [
        {"blocks": "each", "edit": "identity"},
        {"blocks": "quartiles", "edit": "identity"},
        {"blocks": "random", "k": 2, "draws": 5, "seed": 0, "edit": "identity"},
        {"blocks": "each", "edit": "zero"},
        {"blocks": [3, 5], "edit": "skip"},
        {"blocks": "heads", "edit": "heads"},
        {"blocks": [7], "heads": [0, 1], "edit": "heads"},
        {"blocks": "each", "edit": "noise", "draws": 2, "seed": 1},
    ]
    made = check({**tiny, "interventions": lines})
    assert len(sweep(8, made.groups, 2)) == 1 + 8 + 4 + 5 + 8 + 1 + 16 + 1 + 16
    assert sweep(8, check(tiny).groups) == sweep(8)


def test_what_is_large_or_odd_but_possible_is_taken(tiny: Values) -> None:
    values = copy.deepcopy(tiny)
    _set("run/threads", 1024)(values)
    _set("run/pile_folder", "/a folder/of ours's/ä")(values)
    _set("corpus/tiny/world_tokens", 2**31 - 1)(values)
    assert check(values).run.threads == 1024


@pytest.mark.parametrize("file", ["dag/mini.yaml", "faults/kills.yaml"])
def test_the_studies_of_the_tests_are_valid(tiny: Values, file: str) -> None:
    text = (ROOT / "tests" / file).read_text().replace("NAME", "mini")
    shared = {section: tiny[section] for section in ("statistics", "report", "run")}
    assert check({**shared, **YAML(typ="safe").load(text)}).models


def test_all_problems_come_at_once(tiny: Values) -> None:
    values = copy.deepcopy(tiny)
    _set("evaluation/pythia/dtype", "fp8")(values)
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
    write(values, tmp_path / "params.yaml")
    assert switch({"study": "tiny"}, dry_run=True).statistics.seed == 777
    with pytest.raises(InputError, match="python -m pipeline study other seeds=three"):
        switch({"study": "other", "seeds": "three"}, dry_run=True)


def test_every_value_is_described() -> None:
    schema = Study.model_json_schema()
    undescribed = [
        f"{section}.{name}"
        for section, definition in schema["$defs"].items()
        for name, value in definition.get("properties", {}).items()
        # a section is described where it is defined, and the tag of a union by the union
        if "description" not in value and "$ref" not in str(value) and "const" not in value
    ]
    assert undescribed == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["stage", "check@tiny"], ["stage", "memorization@tiny-pythia-8"], ["plan"]]
)
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
    from pipeline.corpus import tasks
    from pipeline.corpus.schema import GENERATED_TASKS
    from pipeline.samples import pile
    from pipeline.samples.schema import PASSAGE_LENGTHS

    assert set(GENERATED_TASKS) == set(tasks.TASKS)
    assert sum(PASSAGE_LENGTHS["pile"]) == sum(pile.FILES.values())


def test_the_paper_is_measured_as_it_says(tmp_path: Path) -> None:
    paper = compose({"study": "paper"}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    lengths = {f.name: (f.prefix_length, f.suffix_length) for f in paper.families.values()}
    assert lengths == {"pythia": (32, 32), "gpt-neo": (150, 50)}
    sources = (paper.family("pythia").samples, paper.family("gpt-neo").samples)
    assert [source.n_memorized for source in sources] == [15_000, 15_000]
    assert {model.name for model in paper.models.values()} == {
        *("gpt-neo-1.3b", "gpt-neo-2.7b"),
        *("pythia-1.4b", "pythia-2.8b", "pythia-6.9b", "pythia-12b"),
    }
    assert paper.benchmarks.tasks == ["arc_easy", "hellaswag", "lambada_openai", "piqa", "wikitext"]
    assert paper.benchmarks.limit is None
    assert [paper.evaluation[f].below_floor for f in ("pythia", "gpt-neo")] == ["stop", "warn"]


def test_every_pin_of_the_studies_is_on_the_local_hub(tmp_path: Path) -> None:
    """So that the tests run what the studies name, at the commits that they name."""
    from tests.hub.population import DATASETS, GPT_NEO, PYTHIA

    known = {repo: commit for repo, (commit, _) in {**DATASETS, **GPT_NEO, **PYTHIA}.items()}

    def pins(value: Any) -> list[tuple[str, str]]:
        below = value.values() if isinstance(value, dict) else value
        found = [pin for each in below if isinstance(each, dict | list) for pin in pins(each)]
        here = isinstance(value, dict) and {"repo", "commit"} <= set(value)
        return [*found, (value["repo"], value["commit"])] if here else found

    used = set()
    for study in ("small", "paper"):
        composed = compose({"study": study}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
        used |= set(pins(composed.model_dump()))
    assert used == set(known.items())


@pytest.mark.parametrize("address", ["memorization", "memorization@x", "theory@tiny-neo-8", ""])
def test_no_other_stage_runs(tiny: Values, address: str) -> None:
    with pytest.raises(InputError, match="stage"):
        registry.run(check(tiny), address)
