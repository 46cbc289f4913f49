"""A metric of one's own in `mine/`: computed, in the schema, and in the digests of its stages."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.measure import metrics
from pipeline.study.checks import require_own_metrics
from pipeline.study.composition import load
from pipeline.workflow.errors import InputError
from tests.project import ROOT, Project, copy_files

PAGE = (ROOT / "docs" / "your-own.md").read_text(encoding="utf-8")
SCRIPT = """
import json
from pipeline.measure.metrics import MEMORIZATION, METRICS
from pipeline.workflow.digest import digest
keys = "memorization", "aggregate", "check_results", "corpus", "interventions"
print(json.dumps([METRICS[-1].name, list(MEMORIZATION), {key: digest(key) for key in keys}]))
"""
LOAD = """
from pipeline.study.composition import load
from pipeline.workflow.errors import InputError
try:
    print(load().study)
except InputError as error:
    print(error)
"""
COMPUTE = """
from types import SimpleNamespace
import numpy as np
from pipeline.measure.metrics import METRICS
rank = np.array([[[1, 10, 11, 200], [1, 1, 1, 1]]])
print(METRICS[-1].function(SimpleNamespace(rank=rank)).tolist())
"""


def python(root: Path, script: str, code: int = 0) -> str:
    done = Project(root).command(sys.executable, "-c", script, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_example_of_the_page(tmp_path: Path) -> None:
    copy_files(tmp_path)
    own = tmp_path / "mine" / "metrics.py"
    name, columns, before = json.loads(python(tmp_path, SCRIPT))
    assert name == "bleu"
    (example,) = re.findall(r"^```python\n(.*?^METRICS = .*?)^```$", PAGE, re.M | re.S)
    own.write_text(example)
    name, with_own, after = json.loads(python(tmp_path, SCRIPT))
    assert name == "top_10_accuracy"
    assert set(with_own) - set(columns) == {"top_10_accuracy"}
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"memorization", "aggregate", "check_results"}
    assert python(tmp_path, COMPUTE).strip() == "[[0.5, 1.0]]"

    own.write_text(example.replace("<= 10", "<= 20"))
    assert json.loads(python(tmp_path, SCRIPT))[2]["memorization"] != after["memorization"]

    own.write_text(example.replace("top_10_accuracy", "bleu"))
    assert "names that no other metric has" in python(tmp_path, SCRIPT, code=1)

    own.write_text(example)
    assert "tiny" in python(tmp_path, LOAD)
    for correct, wrong, got in (
        (
            "made.rank ",
            "made.ranks ",
            "AttributeError: 'Completed' object has no attribute 'ranks'",
        ),
        (".mean(-1)", ".mean(0)", "ValueError: shape (3, 16) for 2 interventions and 3 samples"),
        ("<= 10).mean", "<= 10).sum", "ValueError: the value 3.0"),
        ("Float64", "Float32", "KeyError: Float32"),
        ("import polars", "import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("    Metric(\n", "    dict(\n", "AttributeError: 'dict' object has no attribute 'name'"),
    ):
        assert correct in example
        own.write_text(example.replace(correct, wrong))
        said = python(tmp_path, LOAD)
        assert said.count("mine/metrics.py: ") + said.count("- mine/metrics.py\n") == 1
        assert f"    got:      {got}\n    expected: " in said, said


def test_no_metric_of_the_project_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.py").touch()
    study = load(ROOT / "params.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metrics, "OWN", metrics.METRICS, raising=False)
    require_own_metrics(study)
    monkeypatch.setattr(metrics, "OWN", [replace(metrics.METRICS[-1], most=0)])
    with pytest.raises(InputError, match=f"mine/metrics.py: {metrics.METRICS[-1].name}"):
        require_own_metrics(study)
