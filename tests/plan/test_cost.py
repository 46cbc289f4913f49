"""The one model of cost: its arithmetic, and what the scheduler asks for by it."""

import json
import re
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from ruamel.yaml import YAML
from torch.utils.flop_counter import FlopCounterMode

from pipeline.interventions.completion import complete
from pipeline.interventions.interventions import sweep
from pipeline.interventions.trie import build_trie
from pipeline.plan.cost import (
    LADDER,
    UNKNOWN_SAMPLES,
    Costs,
    Size,
    samples_of,
    size_of,
    training_tokens,
)
from pipeline.plan.scheduling import Needs
from pipeline.stages.registry import STAGES
from pipeline.study.composition import check, compose
from pipeline.study.schema import Study
from tests.project import ROOT, composed

EVALUATE = [name for name, stage in STAGES.items() if stage.evaluates]
PUBLISHED = {"repo": "someone/something", "commit": "0" * 40}


def published_samples(n: int) -> dict[str, Any]:
    """Sequences that Pythia memorized and as many of control, as params.yaml has them."""
    control = {"documents": PUBLISHED, "tokenizer": PUBLISHED, "n": n}
    evals = {"source": "pythia", "evals": PUBLISHED, "splits": ["duped.12b"]}
    return {**evals, "seed": 0, "n_memorized": n, "control": control}


@cache
def _study(dtype: str = "float16", samples: int = 15_000, **benchmarks: Any) -> Study:
    """The study in force, with a published family of three sizes beside what it has."""
    values = YAML(typ="safe").load(ROOT / "params.yaml")
    name = values["study"]
    family = {"name": "big", "prefix_length": 32, "suffix_length": 32}
    values["families"][f"{name}-big"] = {**family, "samples": published_samples(samples)}
    for billions in (0.07, 1.4, 12.0):
        model = {"name": f"big-{billions:g}", "family": "big"}
        checkpoint = {"source": "hub", "billions": billions, **PUBLISHED}
        key = f"{name}-{model['name']}".replace(".", "_")
        values["models"][key] = {**model, "checkpoint": checkpoint}
    values["evaluation"]["big"] = {"dtype": dtype, "baseline_floor": 0.9, "below_floor": "warn"}
    values["benchmarks"] |= benchmarks
    return check(values)


def _request(study: Study, rule: str, model: str = "", attempt: int = 1) -> tuple[int, int]:
    needs, wildcards = Needs(study, STAGES), {"name": model}
    return needs.mem_mb(wildcards, attempt, rule), needs.runtime(wildcards, attempt, rule)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    study = check(composed("tiny"))
    monkeypatch.chdir(tmp_path)
    return study


def test_operations_are_those_that_the_engine_does(neox, tiny):
    tokens = torch.randint(0, 61, (16, 24), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        complete(neox, tokens, 8, sweep(5, tiny.interventions))
    family = {**tiny.families["tiny-pythia"].model_dump(), "prefix_length": 16, "suffix_length": 8}
    values = tiny.model_dump(exclude={"loops"})
    values["families"]["tiny-pythia"] = family
    study = check(values)
    costs, model = Costs(study), next(iter(study.models.values()))
    costs.size = lambda _: Size(5, 4, neox.num_parameters())
    costs.samples = lambda _: 16
    counted = costs.operations("memorization", model)
    assert 0.5 < counter.get_total_flops() / counted < 1.5


def test_interventions_share_blocks(tiny):
    costs, model = Costs(tiny), tiny.model("tiny-pythia-8")
    size, trie = costs.size(model.name), build_trie(sweep(8, tiny.interventions), 8)
    assert size.n_blocks == 8
    family = tiny.family("pythia")
    length, n = family.prefix_length + family.suffix_length, costs.samples("pythia")
    undecoded = tiny.evaluation["pythia"].model_copy(update={"decode": "none"})
    none = tiny.model_copy(update={"evaluation": {**tiny.evaluation, "pythia": undecoded}})
    passes = (trie.block_evaluations + (trie.branches - 1) / 2) / 8
    expected = 2 * size.parameters * n * length * passes
    assert Costs(none).operations("memorization", model) == pytest.approx(expected)
    assert costs.operations("memorization", model) > expected


def test_what_earlier_stages_took_sets_the_rate(tiny):
    model = tiny.model("tiny-pythia-8")
    before = Costs(tiny).seconds("memorization", model, "cpu")
    sidecar = Path("data/tiny/cost/memorization/tiny-pythia-8.json")
    sidecar.parent.mkdir(parents=True)
    sidecar.write_text(json.dumps({"wall_seconds": 1234.0, "device": "cpu"}))
    after = Costs(tiny).seconds("memorization", model, "cpu")
    assert after == pytest.approx(1234 + 15, rel=0.05)
    assert after > 3 * before
    many = Costs(tiny).interventions(model)
    for partly in ({"computed": many - 1}, {"computed": many, "shards": {"reused": 1}}):
        sidecar.write_text(json.dumps({"wall_seconds": 1234.0, "device": "cpu", **partly}))
        assert Costs(tiny).seconds("memorization", model, "cpu") == before
    whole = {"computed": many, "shards": {"reused": 0}}
    sidecar.write_text(json.dumps({"wall_seconds": 1234.0, "device": "cpu", **whole}))
    assert Costs(tiny).seconds("memorization", model, "cpu") == after


def test_the_number_of_samples_is_that_of_the_table_once_it_is_there(tiny):
    family = tiny.family("pythia")
    assert samples_of(tiny, family) == 352
    Path("data/tiny/samples").mkdir(parents=True)
    pl.DataFrame({"x": range(7)}).write_parquet("data/tiny/samples/pythia.parquet")
    assert samples_of(tiny, family) == 7


def test_texts_of_an_unknown_number_are_not_none(tmp_path):
    """Hubble's: its larger models ask for more time, although no number of texts is known."""
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / "pipeline/conf", conf)
    file = conf / "study/hubble.yaml"
    file.write_text(file.read_text().replace("commit: main", f"commit: {'f' * 40}"))
    study = compose({"study": "hubble"}, conf, tmp_path / "params.yaml")
    assert samples_of(study, study.family("passages")) == UNKNOWN_SAMPLES
    small, large = (
        _request(study, "memorization", f"{size}-perturbed")[1] for size in ("1b", "8b")
    )
    assert large > 120
    assert large - STAGES["memorization"].minutes > 4 * (small - STAGES["memorization"].minutes)


def test_training_reads_the_world_and_what_is_planted(tiny):
    model = next(iter(tiny.models.values()))
    assert training_tokens(tiny, model) == 400_000 + 64 * 7136
    costs = Costs(tiny)  # 6 operations a parameter and token, the backward pass among them
    learned = 6 * costs.size(model.name).parameters * (400_000 + 64 * 7136)
    assert costs.operations("checkpoint", model) == learned
    for step, tokens in ((0, 0), (100, 100 * 24 * 64), (10**6, 400_000 + 64 * 7136)):
        stopped = model.model_copy(update={"run": "a", "step": step})
        assert training_tokens(tiny, stopped) == tokens


@pytest.mark.parametrize(("billions", "blocks", "heads"), LADDER)
def test_the_number_of_parameters_tells_the_blocks(billions, blocks, heads):
    study = _study()
    model = study.model("big-12")
    pinned = model.checkpoint.model_copy(update={"billions": 1.03 * billions})
    size = size_of(study, model.model_copy(update={"checkpoint": pinned, "name": "x"}))
    assert (size.n_blocks, size.n_heads, size.estimated) == (blocks, heads, True)
    assert size.parameters == pytest.approx(1.03e9 * billions)


def test_every_rule_of_the_snakefile_asks():
    snakefile = (ROOT / "Snakefile").read_text()
    assert len(re.findall(r"needs\.mem_mb", snakefile)) == len(
        re.findall(r"needs\.runtime", snakefile)
    )
    profile = YAML(typ="safe").load(ROOT / "profiles/slurm/config.yaml")
    gpus = {rule for rule, of in profile["set-resources"].items() if of["gpu"] == 1}
    assert gpus == {*EVALUATE, "memorization_part", "benchmarks_part"}


@pytest.mark.parametrize("rule", EVALUATE)
def test_larger_models_ask_for_more(rule, tmp_path):
    study = _study()
    with (book := tmp_path / "book.txt").open("wb") as file:
        file.truncate(4_000_000)
    windows = {"documents": str(book), "prefix_length": 50, "suffix_length": 50}
    optional = {"attribution": {"samples": 16}, "windows": windows}
    study = check(study.model_dump(exclude={"loops"}) | optional)
    small, middle, large = (_request(study, rule, f"big-{b}") for b in ("0.07", "1.4", "12"))
    assert small[0] < middle[0] < large[0]
    assert small[1] < middle[1] < large[1]
    assert large[1] <= 3 * 1440


@pytest.mark.parametrize(("dtype", "least"), [("float16", 24_000), ("float32", 48_000)])
def test_the_weights_fit(dtype, least):
    memory, _ = _request(_study(dtype), "generations", "big-12")
    assert 2 * least < memory < 3 * least


def test_time_follows_samples_tasks_and_bytes():
    few, many = (_request(_study(samples=n), "memorization", "big-12")[1] for n in (1000, 15_000))
    fixed = _request(_study(), "generations", "big-12")[1]
    assert many - fixed == pytest.approx(15 * (few - fixed), rel=0.1)
    tasks = _request(_study(), "benchmarks", "big-12")[1]
    assert _request(_study(num_fewshot=3), "benchmarks", "big-12")[1] > 1.5 * tasks
    assert _request(_study(limit=10), "benchmarks", "big-12")[1] < tasks
    small, large = (_request(_study(), "checkpoint", f"big-{b}") for b in ("0.07", "12"))
    assert large[1] > small[1] + 40
    assert large[0] == small[0]


def test_every_attempt_asks_for_more():
    study = _study()
    for rule in ("check", "memorization", "checkpoint"):
        asked = [_request(study, rule, "big-12", attempt) for attempt in (1, 2, 3)]
        for (memory, minutes), (more_memory, more_minutes) in pairwise(asked):
            assert more_memory == pytest.approx(1.5 * memory, abs=2)
            assert more_minutes == pytest.approx(2 * minutes, abs=2)
