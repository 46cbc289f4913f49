"""Data stays data: no pickle is loaded, nothing of it reaches a shell, nothing is written outside.

That a token appears in no log, table or report is tested in tests/hub and
tests/workflow/test_hub.py; that a hostile name is refused, in test_bad_input.py.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.study.loops import write_loops
from pipeline.study.schema import Study
from tests.project import Project, copy_files

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_runs_what_a_file_holds(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


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
    ("report/page.py", "S101"): "tells the type checker what was made sure of before",
    ("report/provenance.py", "S603"): "git, with a list of arguments",
    ("analysis/text.py", "S101"): "tells the type checker what was made sure of before",
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


def _declared() -> dict[str, str]:
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    return {name: stage.get("do", stage)["cmd"] for name, stage in stages.items()}


def test_no_command_holds_a_value() -> None:
    """DVC hands a command to a shell, and would fill in a value that nothing has checked yet."""
    assert set(_declared().values()) == {
        "python -m pipeline stage",
        "python -m pipeline.workflow.digest",
    }


@pytest.mark.parametrize("field", ["name", "source", "key"])
def test_a_hostile_value_reaches_no_shell(tmp_path: Path, field: str) -> None:
    """Not even where one stage alone is asked for, so that `check` does not run before it."""
    hostile = "x; touch pwned; $(touch pwned)"
    copy_files(tmp_path)
    yaml = YAML()
    values = yaml.load(tmp_path / "params.yaml")
    values["families"] = {"tiny-world": values["families"].pop("tiny-pythia")}
    family = values["families"]["tiny-world"]
    if field == "key":
        values["families"] = {hostile: family}
    else:
        (family if field == "name" else family["samples"])[field] = hostile
    write_loops(values, tmp_path / "loops.yaml")
    yaml.dump(values, tmp_path / "params.yaml")
    for file in ("data/tiny/study.json", "data/tiny/corpus/x"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    yaml.dump({"samples": {family["samples"]["source"]: {}}}, tmp_path / "data/code.yaml")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    address = f"samples@{next(iter(values['families']))}"
    done = Project(tmp_path).command("dvc", "repro", "--single-item", address, check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "> python -m pipeline stage" in said, "DVC has come to run it"
    assert "touch pwned" in said.partition("with the input")[2], "and it was refused"
    assert not [*tmp_path.rglob("pwned")]


def test_names_are_restricted() -> None:
    """They stand in paths and figures."""
    definitions = Study.model_json_schema()["$defs"]
    for section in ("Family", "Model"):
        pattern = definitions[section]["properties"]["name"]["pattern"]
        characters = re.fullmatch(r"\^(\[[^\]]+\])(\[[^\]]+\])\{0,62\}\$", pattern)
        assert characters
        for code in map(chr, [*range(0x3000), 0xFF41, 0xFF1B]):
            if re.fullmatch(characters[2], code):
                assert re.fullmatch(r"[A-Za-z0-9._-]", code)
            if re.fullmatch(characters[1], code):
                assert re.fullmatch(r"[A-Za-z0-9]", code)


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
HARMLESS = ("/dev/", "/proc/")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["corpus@tiny"], ["theory@tiny-low-rank"]], ids=" ".join)
def test_a_stage_writes_within_the_project_alone(tmp_path: Path, command: list[str]) -> None:
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
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path / "changed"), "stage", *command],
        cwd=root,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": str(scratch),
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    changed = set((tmp_path / "changed").read_text().splitlines())
    assert any(line.startswith(f"{root}/data/") for line in changed), (
        "the hook sees what is written"
    )
    outside = {
        line
        for line in changed
        if not line.startswith((f"{root}/data/", f"{scratch}/", *HARMLESS))
        and line != f"{root}/data"
    }
    assert outside == set()
    assert [*home.rglob("*"), *scratch.rglob("*")] == []
    assert {path: path.read_bytes() for path in kept} == kept
    new = {path.relative_to(root).parts[0] for path in root.rglob("*") if path not in kept}
    below = {path.relative_to(root).parts[0] for path in kept}
    assert new - below == {"data"}
