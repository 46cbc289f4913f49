"""What jobs ask of a scheduler grows with the model, the work and the attempt."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.plan.scheduling import BASE, EVALUATE, Needs
from pipeline.study.composition import check
from pipeline.study.schema import Study

ROOT = Path(__file__).parents[2]
PUBLISHED = {"repo": "someone/something", "commit": "0" * 40}


def _study(dtype: str = "float16", samples: int = 15_000, **benchmarks: Any) -> Study:
    """The study in force, with a published family of three sizes beside what it has."""
    values = YAML(typ="safe").load(ROOT / "params.yaml")
    name = values["study"]
    control = {"documents": PUBLISHED, "tokenizer": PUBLISHED, "n": samples}
    values["families"][f"{name}-big"] = {
        "name": "big",
        "prefix_length": 32,
        "suffix_length": 32,
        "samples": {
            "source": "pythia",
            "evals": PUBLISHED,
            "splits": ["duped.12b"],
            "seed": 0,
            "n_memorized": samples,
            "control": control,
        },
    }
    for billions in (0.07, 1.4, 12.0):
        values["models"][f"{name}-big-{billions:g}".replace(".", "_")] = {
            "name": f"big-{billions:g}",
            "family": "big",
            "checkpoint": {"source": "hub", "billions": billions, **PUBLISHED},
        }
    values["evaluation"]["big"] = {"dtype": dtype, "baseline_floor": 0.9, "below_floor": "warn"}
    values["benchmarks"] |= benchmarks
    return check(values)


def _ask(study: Study, rule: str, model: str = "", attempt: int = 1) -> tuple[int, int]:
    needs = Needs(study)
    wildcards = {"model": model}
    return needs.mem_mb(wildcards, attempt, rule), needs.runtime(wildcards, attempt, rule)


def _rules() -> dict[str, str]:
    """Each rule of the Snakefile -> its text, with that of the rule that it inherits from."""
    found = re.findall(
        r"^(?:use rule (\w+) as |rule )(\w+)(?: with)?:\n(.*?)(?=^rule |^use rule |\Z)",
        (ROOT / "Snakefile").read_text(),
        re.M | re.S,
    )
    own = {rule: body for _, rule, body in found}
    return {rule: own.get(base, "") + body for base, rule, body in found}


def test_every_rule_of_the_snakefile_asks() -> None:
    rules = _rules()
    asking = {rule for rule, body in rules.items() if "mem_mb=needs.mem_mb" in body}
    assert asking == {rule for rule, body in rules.items() if "runtime=needs.runtime" in body}
    assert asking == set(rules) - {"all"} == set(BASE)


def test_the_profile_gives_gpus_to_the_rules_that_can_use_one() -> None:
    profile = YAML(typ="safe").load(ROOT / "profiles/slurm/config.yaml")
    using = {rule for rule, body in _rules().items() if "gpu=GPU" in body}
    assert {rule for rule, of in profile["set-resources"].items() if of["gpu"] == 1} == using
    assert using == set(EVALUATE)


@pytest.mark.parametrize("rule", EVALUATE)
def test_larger_models_ask_for_more(rule: str) -> None:
    small, middle, large = (_ask(_study(), rule, f"big-{b}") for b in ("0.07", "1.4", "12"))
    assert small[0] < middle[0] < large[0]
    assert small[1] < middle[1] < large[1]


@pytest.mark.parametrize(("dtype", "least"), [("float16", 24_000), ("float32", 48_000)])
def test_the_weights_fit(dtype: str, least: int) -> None:
    memory, _ = _ask(_study(dtype), "generations", "big-12")
    assert 2 * least < memory < 3 * least


def test_memorization_takes_as_long_as_its_samples() -> None:
    few, many = (_ask(_study(samples=n), "memorization", "big-12")[1] for n in (1000, 15_000))
    fixed = _ask(_study(), "generations", "big-12")[1]
    assert many - fixed == pytest.approx(15 * (few - fixed), rel=0.05)


def test_time_of_the_largest_model_in_the_paper_is_days_at_most() -> None:
    for rule in EVALUATE:
        assert _ask(_study(), rule, "big-12")[1] <= 3 * 1440


def test_benchmarks_take_as_long_as_their_tasks() -> None:
    all_of_them = _ask(_study(), "benchmarks", "big-12")[1]
    assert _ask(_study(num_fewshot=3), "benchmarks", "big-12")[1] > 3 * all_of_them
    assert _ask(_study(limit=10), "benchmarks", "big-12")[1] < all_of_them / 4


def test_a_fetch_takes_as_long_as_its_bytes() -> None:
    small, large = (_ask(_study(), "checkpoint", f"big-{b}") for b in ("0.07", "12"))
    assert large[1] > small[1] + 40
    assert large[0] == small[0]


@pytest.mark.parametrize("rule", BASE)
def test_every_attempt_asks_for_more(rule: str) -> None:
    asked = [_ask(_study(), rule, "big-12", attempt) for attempt in (1, 2, 3)]
    for (memory, minutes), (more_memory, more_minutes) in pairwise(asked):
        assert more_memory == pytest.approx(1.5 * memory, abs=2)
        assert more_minutes == pytest.approx(2 * minutes, abs=2)
