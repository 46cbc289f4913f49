"""Data stays data: no pickle is loaded, nothing of it reaches a shell, nothing is written outside.

That a token appears in no log, table or report is tested in tests/hub and
tests/workflow/test_hub.py; that a hostile name is refused, in test_bad_input.py.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.project import ROOT, Project, copy_files

MODULES = sorted((ROOT / "pipeline").rglob("*.py"))

UNPICKLING = {"read_pickle", "load_from_disk", "load_state_dict_from_url"}
LOADING_CODE = {"from_pretrained", "from_config", "pipeline"}
"""transformers would run a repository's code, or ask somebody whether to; datasets 5 cannot."""


def _keyword(call: ast.Call, name: str) -> object:
    """The constant that a call is given; None if it is given none."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value.value if isinstance(keyword.value, ast.Constant) else keyword
    return None


def faults(source: str) -> list[str]:
    """What in a module could run what a file holds, and none of ruff's rules on security finds."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.ImportFrom) and call.module in ("torch", "numpy"):
            found += ["load by another name" for alias in call.names if alias.name == "load"]
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        last = name.rpartition(".")[2]
        if last in UNPICKLING or name == "joblib.load":
            found.append(name)
        if name == "torch.load" and _keyword(call, "weights_only") is not True:
            found.append(f"{name} without weights_only=True")
        if name in ("np.load", "numpy.load") and _keyword(call, "allow_pickle") is not False:
            found.append(f"{name} without allow_pickle=False")
        if last in LOADING_CODE and _keyword(call, "trust_remote_code") is not False:
            found.append(f"{name} without trust_remote_code=False")
        if _keyword(call, "trust_remote_code") not in (None, False):
            found.append(f"{name} with trust_remote_code")
        if last == "YAML" and _keyword(call, "typ") not in (None, "safe"):
            found.append(f"{name} of another kind than safe")
    return found


def test_no_module_runs_what_a_file_holds() -> None:
    found = {path: faults(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: each for path, each in found.items() if each} == {}


def test_one_module_runs_a_file_of_the_user() -> None:
    """A study's own edits and scorers below ``edits/`` and ``scorers/``, which its plan names."""
    running = [path for path in MODULES if "noqa: S102" in path.read_text(encoding="utf-8")]
    assert [path.name for path in running] == ["own.py"]


@pytest.mark.parametrize(
    "source",
    [
        *("torch.load(f)", "torch.load(f, weights_only=False)", "joblib.load(f)"),
        "from torch import load",
        *("np.load(f)", "np.load(f, allow_pickle=True)", "pd.read_pickle(f)", 'YAML(typ="unsafe")'),
        *("A.from_pretrained(f)", "A.from_pretrained(f, trust_remote_code=True)"),
        *("A.from_pretrained(f, trust_remote_code=x)", "f(trust_remote_code=True)"),
    ],
)
def test_the_search_finds(source: str) -> None:
    assert faults(source)


EXPLAINED = {
    ("report/provenance.py", "S603"): "git, with a list of arguments",
}
"""Exceptions from ruff's rules on security that are not explained where they stand."""


def test_every_exception_from_a_rule_on_security_is_explained() -> None:
    unexplained = set()
    for path in MODULES:
        name = path.relative_to(ROOT / "pipeline").as_posix()
        text = path.read_text(encoding="utf-8")
        for codes, reason in re.findall(r"# noqa: ([A-Z]+\d+(?:, [A-Z]+\d+)*)(.*)", text):
            if not re.search(r"\w", reason):
                unexplained |= {(name, code) for code in re.findall(r"\bS\d{3}\b", codes)}
    assert unexplained == set(EXPLAINED)
    assert not [path for path in MODULES if "# noqa\n" in path.read_text(encoding="utf-8")]


def test_all_rules_on_security_are_on() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    ignored = [*lint["ignore"], *lint.get("extend-ignore", [])]
    for path, codes in lint["per-file-ignores"].items():
        ignored += [] if path.startswith("tests/") else codes
    assert not [code for code in ignored if re.fullmatch(r"S\d*", code)]


# ---------------------------------------------------------------------- commands


def test_no_command_holds_a_value() -> None:
    """DVC hands a command to a shell, and would fill in a value that nothing has checked yet."""
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"].values()
    assert {stage.get("do", stage)["cmd"] for stage in stages} == {
        "python -m pipeline stage",
        "python -m pipeline.workflow.digest",
    }


def test_a_hostile_value_reaches_no_shell(tmp_path: Path) -> None:
    """Not even where one stage alone is asked for, so that `check` does not run before it."""
    hostile = "x; touch pwned; $(touch pwned)"
    copy_files(tmp_path)
    yaml = YAML()
    values = yaml.load(tmp_path / "params.yaml")
    family = values["families"].pop("tiny-pythia")
    family["name"] = family["samples"]["source"] = hostile
    values["families"] = {hostile: family}
    yaml.dump(values, tmp_path / "params.yaml")
    looped = yaml.load(tmp_path / "loops.yaml")
    file = "data/tiny/study.json"
    stage = {"name": hostile, "source": hostile, "input": file, "tokenizer": file}
    looped["loops"]["samples"] = {hostile: stage}
    yaml.dump(looped, tmp_path / "loops.yaml")
    (tmp_path / "data/tiny").mkdir(parents=True)
    (tmp_path / "data/tiny/study.json").touch()
    yaml.dump({"samples": {hostile: {}}}, tmp_path / "data/code.yaml")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    command = ("dvc", "repro", "--single-item", f"samples@{hostile}")
    done = Project(tmp_path).command(*command, check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "> python -m pipeline stage" in said, "DVC has come to run it"
    assert "touch pwned" in said.partition("with the input")[2], "and it was refused"
    assert not [*tmp_path.rglob("pwned")]


def test_snakemake_runs_one_command() -> None:
    text = (ROOT / "Snakefile").read_text()
    shells = re.findall(r"^ +(shell|run|script|notebook|wrapper):\n +(.*)$", text, re.MULTILINE)
    ((directive, command),) = shells
    assert directive == "shell"
    assert set(re.findall(r"\{([^}]*)\}", command)) == {"params.stage:q", "log:q"}


# ---------------------------------------------------------------------- files

WATCHED = """
import os, runpy, sys
changed = open(sys.argv.pop(1), "a", buffering=1)
def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(flags, int) else 0
        if not (writes or (isinstance(mode, str) and set(mode) & set("wax+"))):
            return
        paths = [path]
    elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime"):
        paths = arguments[:1]
    elif event in ("os.rename", "os.link", "os.symlink"):
        paths = arguments[:2]
    else:
        return
    for path in paths:
        if isinstance(path, (str, bytes, os.PathLike)):
            changed.write(os.path.abspath(os.fsdecode(path)) + "\\n")
sys.addaudithook(hook)
sys.argv[0] = "pipeline"
runpy.run_module("pipeline", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["corpus@tiny", "theory@tiny-low-rank"])
def test_a_stage_writes_within_the_project_alone(tmp_path: Path, stage: str) -> None:
    """Python tells of each file that it opens; what libraries write beside it would be found."""
    root, home, scratch = (tmp_path / name for name in ("project", "home", "scratch"))
    for each in (root, home, scratch):
        each.mkdir()
    copy_files(root)
    yaml = YAML()
    values = yaml.load(root / "params.yaml")
    values["corpus"]["tiny"].update(world_tokens=2_000, task_items=4)
    yaml.dump(values, root / "params.yaml")
    kept = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    own = {"HOME": str(home), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    watched = (sys.executable, "-c", WATCHED, str(tmp_path / "changed"))
    Project(root, own).command(*watched, "stage", stage)
    changed = set((tmp_path / "changed").read_text().splitlines())
    allowed = (f"{root}/data/", f"{scratch}/", "/dev/", "/proc/")
    assert any(line.startswith(allowed[0]) for line in changed), "the hook sees what is written"
    assert {line for line in changed if not line.startswith(allowed)} <= {f"{root}/data"}
    assert [*home.rglob("*"), *scratch.rglob("*")] == []
    assert {path: path.read_bytes() for path in kept} == kept
    new = {path.relative_to(root).parts[0] for path in root.rglob("*") if path not in kept}
    below = {path.relative_to(root).parts[0] for path in kept}
    assert new - below == {"data"}
