"""A stage is stale if what its code says has changed; its params are those that the code uses."""

import ast
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.stages.registry import SOURCES, STAGES
from pipeline.study.composition import load
from pipeline.study.schema import DERIVED, RUN_SECTION, Study
from pipeline.workflow import digest
from pipeline.workflow.dag import Dag, Stage
from pipeline.workflow.provenance import LIBRARIES, VERSIONS

ROOT = Path(__file__).parents[2]

NOT_PARAMS = {"study", "data", "reports", "run", "address", "tasks", "checkpoint"}
"""Of a study: its name and folders are in each stage's name and paths; `run` changes no result."""

IN_PATHS = {"name", "family"}
"""Of a model or family: they are in the stage's paths."""

SWEEPS = {"memorization", "benchmarks"}
ON_MODELS = SWEEPS | {"tokens", "attribution", "generations", "divergence", "windows"}

# module -> the stages that run it
CODE = {
    "pipeline/measure/generations.py": {"generations"},
    "pipeline/stages/sweep.py": SWEEPS,
    "pipeline/stages/tokens.py": {"tokens"},
    "pipeline/interventions/hooks.py": ON_MODELS - {"attribution"}
    | {"mitigation", "scoring", "windows"},
    "pipeline/samples/pile.py": {"samples.pile"},
    "pipeline/theory/low_rank.py": {"theory.low_rank", "theory.constructive"},
    "pipeline/report/page.py": {"report"},
    "pipeline/corpus/world.py": {"corpus", "mitigation"},
    "pipeline/workflow/device.py": set(),
    "pipeline/study/composition.py": set(),
    "pipeline/plan/table.py": set(),
}

WORDING = {
    "a comment": ("pipeline/measure/metrics.py", "\n\n\n", "\n\n# why\n\n"),
    "a docstring": ("pipeline/interventions/hooks.py", '"""', '"""Otherwise: '),
    "an error": ("pipeline/samples/frame.py", "Problem(", 'Problem("in other words", '),
    "another error": ("pipeline/interventions/interventions.py", "ValueError(f", "ValueError(1, f"),
    "a description": ("pipeline/samples/schema.py", 'description="', 'description="that is, '),
    "an annotation": ("pipeline/measure/memorization.py", ") -> ", ") -> None | "),
    "layout": ("pipeline/report/page.py", "(", "(\n    "),
}


@cache
def _dag() -> Dag:
    return Dag()


@cache
def _digests() -> dict[str, object]:
    """Key of a stage, such as ``samples.pile`` -> its digest."""
    return _flat(digest.digests())


def _flat(digests: dict[str, dict[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for group, entry in digests.items():
        of_sources = {f"{group}.{source}": each for source, each in entry.items()}
        keyed = {group: entry} if "code" in entry else of_sources
        made |= {key: value["code"] for key, value in keyed.items()}
    return made


def _stale(monkeypatch: pytest.MonkeyPatch, file: str, text: str) -> set[str]:
    """The stages whose digest differs if a module has another text."""
    before, parsed, meaning, edited = _digests(), digest.parsed, digest.meaning, Path(file)
    tree = digest._Meaning().visit(ast.parse(text))
    with monkeypatch.context() as patch:
        patch.setattr(digest, "parsed", lambda file: tree if file == edited else parsed(file))
        patch.setattr(
            digest, "meaning", lambda file: digest._dump(tree) if file == edited else meaning(file)
        )
        after = _flat(digest.digests())
    return {key for key in before if before[key] != after[key]}


@pytest.mark.parametrize("file", CODE)
def test_an_edit_of_code_concerns_the_stages_that_run_it(monkeypatch, file):
    """The last statement of the module, or of the function of a stage, is another one."""
    text = Path(file).read_text()
    edited = text + "\n    CHANGED = True\n" if "stages/t" in file else text + "\nCHANGED = True\n"
    assert _stale(monkeypatch, file, edited) == CODE[file]


@pytest.mark.parametrize("what", WORDING)
def test_an_edit_of_wording_concerns_no_stage(monkeypatch, what):
    file, old, new = WORDING[what]
    text = Path(file).read_text()
    assert old in text
    edited = text.replace(old, new, 1)
    ast.parse(edited)
    assert _stale(monkeypatch, file, edited) == set()


def test_the_digest_does_not_depend_on_the_version_of_python():
    """Which adds fields to the tree, and leaves out what is empty."""
    text = "def f(a, b=''): return f'{a:>{b}}', None, 0, ['']"
    tree, other = ast.parse(text), ast.parse(text)
    for node in ast.walk(other):
        if isinstance(node, ast.FunctionDef):
            node._fields = (*node._fields, "type_params")
            node.type_params = []
            del node.decorator_list
        if isinstance(node, ast.JoinedStr):
            node.values.append(ast.Constant(""))
    assert digest._dump(tree) == digest._dump(other)
    for old, new in (("['']", "[]"), ("b=''", "b"), ("0", "None")):
        assert digest._dump(ast.parse(text.replace(old, new))) != digest._dump(tree)


def test_what_mine_uses_concerns_the_stages_that_read_it(tmp_path, monkeypatch):
    """Helpers, and data files that a module names; a folder for all else, such as a model."""
    (tmp_path / "pipeline").symlink_to(ROOT / "pipeline")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    texts = {
        "metrics.py": "from .helper import limit\nWORDS = 'mine/words.txt'\n",
        "helper.py": "limit = 1\n",
        "words.txt": "a",
    }
    for name, text in texts.items():
        Path("mine", name).write_text(text)
    others = [Path("mine/README.md"), Path("mine/model/weights.bin")]
    others[1].parent.mkdir()
    for path in others:
        path.write_bytes(b"\xa0")
    digest.forget()
    known = {key: digest.digest(key) for key in ("memorization", "divergence")}
    assert set(digest.files("memorization")) >= {Path("mine", name) for name in texts}
    for name, text in texts.items():
        Path("mine", name).write_text(f"{text}b = 2\n")
        digest.forget()
        assert digest.digest("memorization") != known["memorization"], name
        assert digest.digest("divergence") == known["divergence"]
        known["memorization"] = digest.digest("memorization")
    for path in others:
        path.write_bytes(b"\xa1")
    digest.forget()
    assert digest.digest("memorization") == known["memorization"]


def test_names_that_are_bound_together_have_their_definition():
    nodes, _ = digest._reached(Path("pipeline/measure/schemas.py"), {"EXACT"})
    assert "ROLLING, EXACT" in ast.unparse(nodes[0])


def test_what_shapes_a_table_concerns_its_writer(monkeypatch):
    """The dtype of a column; how every table is written."""
    file = "pipeline/measure/schemas.py"
    text = Path(file).read_text()
    old = '"prompt_id": uint32'
    assert old in text
    edited = text.replace(old, old.replace("32", "64"))
    assert _stale(monkeypatch, file, edited) == {"generations", "report"}
    file = "pipeline/workflow/tables.py"
    edited = Path(file).read_text() + "\nCHANGED = True\n"
    assert {"generations", "samples.pile", "aggregate"} <= _stale(monkeypatch, file, edited)


def test_every_data_file_belongs_to_a_stage():
    """But for the studies and the licences; `compare` is no stage."""
    used = {str(file) for key in _digests() for file in digest.files(key)}
    data = {
        str(file)
        for room in Path("pipeline").iterdir()
        if room.is_dir() and room.name != "conf"
        for file in room.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc", ".LICENSE")
    }
    assert data - used == {"pipeline/report/compare.html.jinja"}


def test_every_stage_has_a_digest():
    used = set[str]()
    for stage in _dag().stages.values():
        keys = set(stage.params.get("data/code.yaml", ()))
        used |= keys
        group = stage.group.removesuffix("_part")
        assert {key.partition(".")[0] for key in keys} == {group} - {"code", "check"}
    assert used <= set(_digests())
    assert {key.partition(".")[0] for key in _digests()} == set(STAGES)


def test_a_sweep_follows_torch():
    assert all({"torch", "transformers"} <= {*digest.libraries(group)} for group in SWEEPS)


def test_recorded_versions_are_the_tested_ones():
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    recorded = YAML(typ="safe").load(ROOT / VERSIONS)
    assert set(recorded) == set(LIBRARIES)
    assert {name: pinned[name.replace("_", "-").lower()] for name in recorded} == recorded


@cache
def _study() -> Study:
    return load(ROOT / "params.yaml")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _code(stage: Stage) -> list[ast.AST]:
    """The function of a stage; of one that runs a model also what all of these share."""
    group = stage.group.removesuffix("_part")
    tree = _tree(Path(f"pipeline/stages/{group}.py"))
    key = stage.address.partition("@")[2]
    entry = getattr(_study(), STAGES[group].loops_over or "", {}).get(key)
    name = SOURCES[group](entry) if group in SOURCES else group
    shared = [_tree(Path("pipeline/stages/evaluated.py"))] if STAGES[group].evaluates else []
    return [
        *(node for node in tree.body if getattr(node, "name", name[:1] + "_") == name),
        *(node for node in tree.body if getattr(node, "name", "").startswith("_")),
        *shared,
    ]


def _one_of_each_group() -> list[str]:
    """A loop of dvc.yaml declares all stages of a group alike."""
    addresses = sorted(set(_dag().stages) - {"code"})
    return list({address.partition("@")[0]: address for address in addresses}.values())


@pytest.mark.parametrize("address", _one_of_each_group())
def test_params_are_those_that_the_command_uses(address):
    stage = _dag().stages[address]
    declared = set(stage.params.get("params.yaml", ()))
    item = address.partition("@")[2]
    if stage.group in ("check", "report"):  # the one checks them all, the other shows them all
        assert declared == set(Study.model_fields) - {DERIVED, RUN_SECTION}
        return
    if stage.group == "theory":  # its section is found by its class
        assert declared == {f"theory.{item}"}
        return
    families = {key: model.family for key, model in _study().models.items()}
    used, narrowed = set[str](), list[ast.AST | None]()
    for node in (node for tree in _code(stage) for node in ast.walk(tree)):
        if not isinstance(node, ast.Attribute):
            continue
        owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
        if owner == "study" and node.attr not in NOT_PARAMS and node not in narrowed:
            part = {
                "corpus": f"corpus.{item}",
                "datasets": f"datasets.{item}",
                "evaluation": f"evaluation.{families.get(item)}",
                **dict.fromkeys(("listed", "reported", "steps", "twins"), "models"),
            }
            used.add(part.get(node.attr, node.attr))
        section = getattr(node.value, "value", None)
        if getattr(section, "attr", "") == "evaluation":  # study.evaluation[…].dtype
            used.add(f"evaluation.{families[item]}.{node.attr}")
            narrowed.append(section)
        entry = stage.group in ("samples", "checkpoint") and owner in ("model", "family")
        if entry and node.attr not in IN_PATHS:
            used.add(f"{'families' if owner == 'family' else 'models'}.{item}")
    used = {key for key in used if key.rpartition(".")[0] not in used}
    assert declared == used
