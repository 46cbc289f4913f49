"""A finished study as a Workflow Run RO-Crate; the DAG of the engines is real, the work is not."""

import hashlib
import json
import sys
from zipfile import ZipFile

import pytest

WRITE = (
    "import sys; from pathlib import Path; from pipeline.study.composition import load;"
    "from pipeline.study.crate import write_crate; write_crate(load(), Path(sys.argv[1]))"
)


@pytest.fixture(scope="module")
def crate(finished, tmp_path_factory) -> ZipFile:
    to = tmp_path_factory.mktemp("crate") / "mini.crate.zip"
    finished.command(sys.executable, "-c", WRITE, str(to))
    return ZipFile(to)


@pytest.fixture(scope="module")
def graph(crate) -> dict[str, dict]:
    entities = json.loads(crate.read("ro-crate-metadata.json"))["@graph"]
    return {entity["@id"]: entity for entity in entities}


def ids(value) -> list[str]:
    return [each["@id"] for each in (value if isinstance(value, list) else [value])]


def path(name: str) -> str:
    """The path of an entity: a file, a folder, or a name without content."""
    return name.removeprefix("#").removesuffix("/")


def test_each_stage_is_an_action_with_what_it_read_and_wrote(finished, graph):
    stages = json.loads((finished.root / "stages.json").read_text())
    outs = {out for stage in stages.values() for out in stage["outs"]}
    for address, stage in stages.items():
        if address.startswith("check@"):
            continue
        action = graph[f"#run-{address}"]
        assert action["@type"] == "CreateAction"
        assert {path(name) for name in ids(action["result"])} == set(stage["outs"])
        read = {path(name) for name in ids(action["object"])} - {"params.yaml"}
        for dep in stage["deps"]:  # a folder stands for the outputs in it
            within = {out for out in outs if out.startswith(f"{dep}/")}
            assert dep in read or (within and within <= read) or dep.endswith("study.json"), dep
    actions = [entity for entity in graph.values() if entity["@type"] == "CreateAction"]
    assert len(actions) == len(stages)  # without the check, with the run as a whole


def test_files_are_packed_and_have_their_checksums(crate, graph):
    packed = set(crate.namelist())
    checked = 0
    for name, entity in graph.items():
        if "File" in entity["@type"] and name != "ro-crate-metadata.json":
            assert name in packed
            if "identifier" in entity and name != "Snakefile":
                content = hashlib.md5(crate.read(name)).hexdigest()
                assert entity["identifier"] == f"md5:{content}"
                checked += 1
    assert checked > 20
    assert "reports/mini/index.html" in packed
    assert {"pipeline/interventions/wavefront.py", "mine/README.md"} <= packed
    assert not [name for name in packed if "__pycache__" in name]
    assert graph["#data/mini/checkpoints/p-1.4b"]["identifier"].startswith("md5:")
    assert not [name for name in packed if name.startswith("data/mini/checkpoints")], "weights"


def test_every_reference_leads_to_an_entity(graph):
    for entity in graph.values():
        for key in ("object", "result", "instrument", "step", "hasPart", "mentions", "workExample"):
            assert set(ids(entity.get(key, []))) <= set(graph), (entity["@id"], key)


def test_a_study_that_has_to_run_makes_no_crate(project, tmp_path):
    project.replace("params.yaml", "new_tokens: 1", "new_tokens: 2")
    done = project.command(sys.executable, "-c", WRITE, str(tmp_path / "no.zip"), check=False)
    assert "generations@mini-n-2_7b" in done.stderr
    assert "--config study=mini, then the same command again" in done.stderr
    assert not (tmp_path / "no.zip").exists()
