"""params.yaml: what is refused, how, and that it is what it is composed from."""

import copy
import functools
import itertools
import operator
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.interventions.interventions import Group, sweep
from pipeline.stages import registry
from pipeline.study.composition import CONF, check, compose, load, switch, write
from pipeline.study.schema import Study
from pipeline.workflow.errors import InputError
from tests.project import ROOT, Project, commit_all, composed, copy_files, python

Values = dict[str, Any]


@pytest.fixture(scope="module")
def tiny() -> Values:
    return YAML(typ="safe").load(ROOT / "params.yaml")


def test_params_yaml_is_the_composed_default_study(tmp_path):
    compose({}, conf=ROOT / CONF, path=tmp_path / "params.yaml")
    assert (tmp_path / "params.yaml").read_text() == (ROOT / "params.yaml").read_text()


@pytest.mark.parametrize("option", sorted(p.stem for p in (ROOT / CONF / "study").glob("*.yaml")))
def test_every_study_composes_and_is_called_as_its_file(option, tmp_path):
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


def test_three_seeds_triple_the_models_and_dvc_composes_the_same_bytes(tiny, tmp_path):
    from dvc.utils.hydra import compose_and_dump

    path, theirs = tmp_path / "params.yaml", tmp_path / "theirs.yaml"
    one, three = check(tiny), compose({"seeds": "three"}, conf=ROOT / CONF, path=path)
    assert len(three.models) == 3 * len(one.models)
    for original in one.models.values():
        alike = [m for m in three.models.values() if m.name.startswith(f"{original.name}-seed-")]
        assert [model.checkpoint.seed for model in alike] == [1, 2]
        assert {model.family for model in alike} == {original.family}
        assert all(
            model.checkpoint.model_copy(update={"seed": 0}) == original.checkpoint
            for model in alike
        )
    compose_and_dump(theirs, str(ROOT / CONF), None, "config", str(ROOT / CONF), ["seeds=three"])
    assert path.read_bytes() == theirs.read_bytes()


def test_the_steps_of_a_run_are_one_training(tiny):
    study = check(composed("steps"))
    assert study.steps == [
        (f"step-{step}", "tiny-pythia-8", step) for step in (100, 200, 300, 400, 457)
    ]
    first, *others = study.models.values()
    assert all(model.checkpoint == first.checkpoint for model in others)
    assert check(tiny).steps == []


MODEL = "models/tiny-pythia-8"
BAD: dict[str, Values] = YAML(typ="safe").load(Path(__file__).with_name("bad_params.yaml"))
del BAD["shared"]


def _changed(tiny: Values, new: Values, unset: Sequence[str] = ()) -> Values:
    """The study with new values, and without others; each is told by its path."""
    values = copy.deepcopy(tiny)
    for path in (*unset, *new):
        *parents, last = path.replace("MODEL", MODEL).split("/")
        section = functools.reduce(operator.getitem, parents, values)
        if path in unset:
            del section[last]
        else:
            section[last] = new[path]
    return values


@pytest.mark.parametrize("case", BAD)
def test_bad_params_are_refused(tiny, case):
    bad = BAD[case]
    with pytest.raises(InputError) as caught:
        check(_changed(tiny, bad.get("set", {}), bad.get("unset", ())))
    message = str(caught.value)
    for part in ("got:", "expected:", "remedy:", *bad["says"]):
        assert part.replace("MODEL", MODEL.replace("/", ".")) in message


def test_every_kind_of_intervention_is_taken(tiny):
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
    assert len(sweep(8, made.interventions, 2)) == 1 + 8 + 4 + 5 + 8 + 1 + 16 + 1 + 16
    edits = ("zero", "mean", "noise")
    others = [one for edit in edits for one in sweep(8, [Group("each", edit)])[1:]]
    assert sweep(8, check(tiny).interventions) == (*sweep(8), *others)


def test_what_is_large_or_odd_but_possible_is_taken(tiny):
    odd = {"run/threads": 1024, "run/pile_folder": "/a folder/of ours's/ä"}
    large = {"corpus/tiny/world_tokens": 2**31 - 1}
    assert check(_changed(tiny, odd | large)).run.threads == 1024


def test_all_problems_come_at_once(tiny):
    wrong = {"evaluation/pythia/dtype": "fp8", "statistics/seed": -1, "run/treads": 2}
    with pytest.raises(InputError) as caught:
        check(_changed(tiny, wrong))
    assert len(caught.value.problems) == 3


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="python -m pipeline study tiny"):
        load(tmp_path / "params.yaml")


def test_an_unknown_choice_is_refused_and_nothing_written(tmp_path):
    path = tmp_path / "params.yaml"
    with pytest.raises(InputError) as caught:
        compose({"study": "tinny", "sead": "one"}, conf=ROOT / CONF, path=path)
    assert len(caught.value.problems) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_bad_study_file_leaves_params_as_they_are(tmp_path):
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


def test_naming_the_study_in_force_keeps_its_edits(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(_changed(tiny, {"statistics/seed": 777}), tmp_path / "params.yaml")
    assert switch({"study": "tiny"}, dry_run=True).statistics.seed == 777
    with pytest.raises(InputError, match="python -m pipeline study other seeds=three"):
        switch({"study": "other", "seeds": "three"}, dry_run=True)


def test_studies_are_switched_there_and_back(tmp_path):
    copy_files(tmp_path)
    commit_all(tmp_path)
    project = Project(tmp_path)

    def bytes_after(name: str) -> tuple[bytes, bytes]:
        command = project.command(sys.executable, "-m", "pipeline", "study", name)
        told, after = command.stdout.splitlines()
        assert told.startswith(f"params.yaml is now study {name}: ")
        assert after.startswith("Next: python -m pipeline plan")
        return (tmp_path / "params.yaml").read_bytes(), (tmp_path / "loops.yaml").read_bytes()

    before = (ROOT / "params.yaml").read_bytes(), (ROOT / "loops.yaml").read_bytes()
    sizes = bytes_after("sizes")
    assert bytes_after("tiny") == before != sizes
    assert bytes_after("sizes") == sizes


def test_a_param_is_set_in_the_study_in_force(tmp_path):
    """What `dvc exp run -S` does: DVC composes with the plugins of pipeline/conf/."""
    conf, params = str(ROOT / CONF), tmp_path / "params.yaml"
    script = (
        "import sys; from dvc.utils.hydra import compose_and_dump;"
        f"compose_and_dump('params.yaml', {conf!r}, None, 'config', {conf!r}, sys.argv[1:])"
    )

    def after(*overrides: str) -> Values:
        python("-c", script, *overrides, cwd=tmp_path)
        return YAML(typ="safe").load(params)

    twins = after("study=twins")
    twins["statistics"]["seed"] = 777  # an edit
    write(twins, params)
    loops = tmp_path / "loops.yaml"
    before = params.read_bytes(), loops.read_bytes()
    family = next(iter(twins["evaluation"]))
    twins["evaluation"][family]["decode"] = 63
    assert after(f"evaluation.{family}.decode=63") == twins
    assert loops.read_bytes() == before[1]
    assert after("benchmarks=null") == {**twins, "benchmarks": None}
    assert YAML(typ="safe").load(loops)["loops"]["benchmarks"] == {}
    params.write_text("study: [")
    assert after("study=tiny")["study"] == "tiny"
    after("study=twins", "statistics.seed=777")
    assert (params.read_bytes(), loops.read_bytes()) == before, "there and back"


def test_every_value_is_described():
    schema = Study.model_json_schema()
    undescribed = [
        f"{section}.{name}"
        for section, definition in schema["$defs"].items()
        for name, value in definition.get("properties", {}).items()
        # a section is described where it is defined, and the tag of a union by the union
        if "description" not in value
        and "$ref" not in str(value)
        and "const" not in value
        # a dataclass is described by its docstring
        and f"\n    {name}: " not in definition.get("description", "")
    ]
    assert undescribed == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [["stage", "memorization@tiny-pythia-8"], ["plan"]])
def test_every_command_checks_first(tmp_path, command):
    (tmp_path / "params.yaml").write_text("study: tiny\nrun: {treads: 1}\n")
    run = python("-m", "pipeline", *command, cwd=tmp_path, check=False, PATH="")
    assert run.returncode == 2
    assert "run.treads" in run.stderr
    assert "Traceback" not in run.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]


def test_what_the_schema_repeats_is_true():
    """The schema loads in a moment, so it does not import the modules that know."""
    from pipeline.corpus import tasks
    from pipeline.corpus.schema import GENERATED_TASKS
    from pipeline.samples import pile
    from pipeline.samples.schema import PASSAGE_LENGTHS

    assert set(GENERATED_TASKS) == set(tasks.TASKS)
    assert sum(PASSAGE_LENGTHS["pile"]) == sum(pile.FILES.values())


def test_the_paper_is_measured_as_it_says():
    small, paper = (check(composed(study)) for study in ("small", "paper"))
    assert [study.family("pythia").samples.splits for study in (small, paper)] == [
        [f"duped.{size}" for size in sizes]
        for sizes in (("70m", "160m", "410m"), ("1.4b", "2.8b", "6.9b", "12b"))
    ]
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


def test_every_pin_of_the_studies_is_on_the_local_hub():
    """So that the tests run what the studies name, at the commits that they name."""
    from tests.hub.population import DATASETS, GPT_NEO, PYTHIA

    known = DATASETS | {repo: commit for repo, (commit, _) in {**GPT_NEO, **PYTHIA}.items()}

    def pins(value: Any) -> list[tuple[str, str]]:
        below = value.values() if isinstance(value, dict) else value
        found = [pin for each in below if isinstance(each, dict | list) for pin in pins(each)]
        here = isinstance(value, dict) and {"repo", "commit"} <= set(value)
        return [*found, (value["repo"], value["commit"])] if here else found

    used = {pin for study in ("small", "paper") for pin in pins(composed(study))}
    assert used == set(known.items())


@pytest.mark.parametrize("address", ["memorization", "memorization@x", "theory@tiny-neo-8", ""])
def test_no_other_stage_runs(tiny, address):
    with pytest.raises(InputError, match="stage"):
        registry.run(check(tiny), address)
