"""The datasets of lm-eval's tasks: found as the library finds them, checked, and kept whole."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from huggingface_hub import constants

from pipeline.tasks.datasets import fetch_datasets, load
from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.files import checksums
from pipeline.workflow.hub import snapshot
from tests.hub.miniatures import DOCUMENTS, dataset, parquet
from tests.hub.population import PINNED
from tests.hub.server import CLIMBING_PATH, Fault, Hub
from tests.project import refused

pytestmark = pytest.mark.usefixtures("hub_home")


DATA = {"test.parquet": parquet({"a": [1]})}


def pin(hub: Hub, files: dict[str, bytes], **changes: Any) -> dict[str, dict[str, Any]]:
    """One task whose dataset has these files, and one document of one column."""
    commit = hub.dataset("mini/task").add(files)
    pinned = {"repo": "mini/task", "commit": commit, "name": None, "split": "test"}
    return {"task": {**pinned, "documents": 1, "columns": ["a"], **changes}}


def refusal(folder: Path, pinned: dict[str, dict[str, Any]]) -> Problem:
    problem = refused(fetch_datasets, folder, pinned)
    assert not list(folder.parent.glob(f"*{folder.name}*")), "nothing half-written"
    assert all((problem.what, problem.got, problem.expected, problem.remedy))
    return problem


def test_each_dataset_lies_below_its_task_with_what_was_checked(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    fetch_datasets(folder, PINNED)
    assert {path.name for path in folder.iterdir()} == {*PINNED, "datasets.json"}
    index = json.loads((folder / "datasets.json").read_text())
    for task, pinned in PINNED.items():
        assert {key: index[task][key] for key in pinned} == pinned
        files = hub.dataset(pinned["repo"]).commits[pinned["commit"]]
        assert index[task]["files"] == {path: files[path].sha256 for path in index[task]["files"]}
        kept = pl.read_parquet(folder / task / f"{pinned['split']}.parquet")
        assert kept.height == DOCUMENTS
        assert not any(path.is_symlink() for path in (folder / task).iterdir()), "DVC keeps it"


def test_offline_the_cache_gives_the_same_bytes_and_a_folder_is_replaced(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        hub.log.clear()
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d/left.parquet").touch()
        fetch_datasets(tmp_path / "d", PINNED)
        made.append(checksums(tmp_path / "d"))
    assert made[0] == made[1]
    assert "left.parquet" not in made[0]
    assert hub.log == []


def test_no_network_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "STUDY=tiny" in refusal(tmp_path / "d", PINNED).remedy


def test_another_number_of_documents_stops(tmp_path: Path) -> None:
    for documents in (DOCUMENTS - 1, DOCUMENTS + 1):
        pinned = {"piqa": PINNED["piqa"] | {"documents": documents}}
        problem = refusal(tmp_path / "d", pinned)
        assert problem.what.startswith("baber/piqa at 142f6d73")
        assert problem.got == f"{DOCUMENTS} documents"
        assert problem.expected == f"{documents}, as the study says"
        assert "`documents`" in problem.remedy


def test_languages_that_fall_together_are_noticed(hub: Hub, tmp_path: Path) -> None:
    """Without a README, `datasets` makes one split of all of LAMBADA's languages, in silence."""
    files = dataset("EleutherAI/lambada_openai")
    jsonl = {path: data for path, data in files.items() if path.endswith(".jsonl")}
    commit = hub.dataset("mini/lambada").add(jsonl)
    data, _ = load("mini/lambada", commit)
    assert len(data["test"]) == 6 * DOCUMENTS
    pinned = PINNED["lambada_openai"] | {"repo": "mini/lambada", "commit": commit, "name": None}
    problem = refusal(tmp_path / "d", {"lambada_openai": pinned})
    assert problem.got == f"{6 * DOCUMENTS} documents"


HEADS: dict[str, bytes] = {
    "broken": b"---\nconfigs: [\n---\n",
    "a list": b"---\n- configs\n---\n",
    "text": b"---\njust text\n---\n",
    "configs of text": b"---\nconfigs: all\n---\n",
    "configs without a name": b"---\nconfigs:\n- data_files: '*.parquet'\n---\n",
    "not UTF-8": b"---\nlicense: \xff\xfe\n---\n",
    "files that are not there": b"---\nconfigs:\n- config_name: a\n  data_files: none/*\n---\n",
    "out of the folder": b"---\nconfigs:\n- config_name: default\n  data_files: ../../*\n---\n",
    "tags": b"---\nconfigs: !!python/object/apply:os.system [exit]\n---\n",
}
HARMLESS = {
    "empty": b"",
    "no head": b"Text.\n",
    "configs: null": b"---\nconfigs: null\n---\n",
    "a licence": "---\nlicense: mit\n---\n# é ×\n".encode(),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_readme_that_cannot_be_used_is_refused(hub: Hub, tmp_path: Path, case: str) -> None:
    problem = refusal(tmp_path / "d", pin(hub, {**DATA, "README.md": HEADS[case]}))
    assert problem.what.startswith("mini/task at ")


@pytest.mark.parametrize("case", HARMLESS)
def test_a_readme_that_says_nothing_does_no_harm(hub: Hub, tmp_path: Path, case: str) -> None:
    fetch_datasets(tmp_path / "d", pin(hub, {**DATA, "README.md": HARMLESS[case]}))
    assert pl.read_parquet(tmp_path / "d/task/test.parquet").rows() == [(1,)]


@pytest.mark.parametrize(
    ("files", "changes", "got"),
    [
        ({"test.parquet": parquet({"b": [1]})}, {}, "columns b"),
        ({"train.parquet": parquet({"a": [1]})}, {}, "the splits train"),
        ({"test.parquet": b"PAR1"}, {}, "Parquet"),
        ({"test.jsonl": b"<!DOCTYPE html>"}, {}, ""),
        ({"script.py": b"raise SystemExit"}, {}, ""),
        (DATA, {"name": "no-such"}, "no-such"),
        ({}, {}, ""),
    ],
    ids=["column", "split", "no parquet", "HTML", "a script", "configuration", "nothing"],
)
def test_data_that_cannot_be_used_is_refused(
    hub: Hub, tmp_path: Path, files: dict[str, bytes], changes: dict[str, Any], got: str
) -> None:
    problem = refusal(tmp_path / "d", pin(hub, files, **changes))
    assert problem.what.startswith("mini/task at ")
    assert got in problem.got


def test_the_problems_of_all_datasets_are_told_at_once(hub: Hub, tmp_path: Path) -> None:
    pinned = pin(hub, DATA, documents=2)
    unknown = PINNED["piqa"] | {"commit": "0" * 40}
    with pytest.raises(InputError) as caught:
        fetch_datasets(tmp_path / "d", {**pinned, "piqa": unknown, "wikitext": PINNED["wikitext"]})
    wrong, missing = caught.value.problems
    assert wrong.got == "1 documents"
    assert "no such commit" in missing.got


def test_a_fault_leaves_what_was_there(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    fetch_datasets(folder, {"wikitext": PINNED["wikitext"]})
    before = checksums(folder)
    hub.faults.append(Fault("Rowan/hellaswag/.*parquet", "corrupt", times=None))
    with pytest.raises(InputError, match="other content than the hub lists"):
        fetch_datasets(folder, PINNED)
    assert checksums(folder) == before


def test_a_listing_that_climbs_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.faults.append(Fault("/tree/", "climb", times=None))
    assert CLIMBING_PATH in refusal(tmp_path / "d", pin(hub, DATA)).got


def test_what_else_the_cache_holds_is_no_matter(hub: Hub, tmp_path: Path) -> None:
    pinned = PINNED["lambada_openai"]
    snapshot(pinned["repo"], pinned["commit"], ["*", "*/*", "*/*/*"], "dataset")
    fetch_datasets(tmp_path / "d", {"lambada_openai": pinned})
    assert pl.read_parquet(tmp_path / "d/lambada_openai/test.parquet").height == DOCUMENTS
