"""The datasets of lm-eval's tasks: whole, checked, and described by what was fetched alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from huggingface_hub import metadata_load
from ruamel.yaml import YAML

from pipeline.errors import InputError
from pipeline.samples.datasets import fetch
from tests.hub.population import DATASETS
from tests.hub.server import Fault, Hub

ROOT = Path(__file__).parents[2]
STUDY = YAML(typ="safe").load(ROOT / "pipeline/conf/study/paper.yaml")
PINNED: dict[str, dict[str, Any]] = STUDY["datasets"]["paper"]

pytestmark = pytest.mark.usefixtures("hub_home")


def parquet(columns: dict[str, list[Any]]) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


def a_task(
    hub: Hub, files: dict[str, bytes], patterns: list[str], columns: tuple[str, ...] = ("a",)
) -> dict[str, dict[str, Any]]:
    """One task whose dataset has these files."""
    commit = hub.dataset("mini/task").add(files)
    pinned = {"repo": "mini/task", "commit": commit, "files": patterns, "columns": list(columns)}
    return {"task": pinned}


# ---------------------------------------------------------------------- the real ones


def test_each_dataset_lies_whole_below_its_task(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "datasets"
    fetch(folder, PINNED)
    assert {path.name for path in folder.iterdir()} == {*PINNED, "datasets.json"}
    for task, pinned in PINNED.items():
        files = hub.dataset(pinned["repo"]).files()
        here = [p for p in (folder / task).rglob("*") if p.is_file()]
        assert len(here) > 1
        for path in here:
            name = path.relative_to(folder / task).as_posix()
            assert name == "README.md" or path.read_bytes() == files[name]
            assert not path.is_symlink(), "DVC keeps the folder"
    index = json.loads((folder / "datasets.json").read_text())
    assert list(index) == list(PINNED)
    for task, entry in index.items():
        assert (entry["repo"], entry["commit"]) == (PINNED[task]["repo"], PINNED[task]["commit"])
        below = folder / task
        assert set(entry["files"]) == {
            p.relative_to(below).as_posix() for p in below.rglob("*") if p.is_file()
        }


def test_configurations_that_were_not_fetched_are_dropped(tmp_path: Path) -> None:
    fetch(tmp_path / "datasets", PINNED)

    def named(task: str) -> list[str]:
        card = metadata_load(tmp_path / "datasets" / task / "README.md")
        return [each["config_name"] for each in card["configs"]]

    assert named("arc_easy") == ["ARC-Easy"]
    assert named("wikitext") == ["wikitext-2-raw-v1"]
    assert named("lambada_openai") == ["default", "de"], "all its data is fetched"


def test_the_same_datasets_are_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        fetch(tmp_path / name, PINNED)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append({p.relative_to(tmp_path / name): p.read_bytes() for p in files})
    assert contents[0] == contents[1]


def test_a_folder_is_replaced_as_a_whole(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "datasets"
    fetch(folder, PINNED)
    fetch(folder, a_task(hub, {"a.parquet": parquet({"a": [1]})}, ["*.parquet"]))
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*")) == [
        *("datasets.json", "task/a.parquet")
    ]


# ---------------------------------------------------------------------- READMEs

DATA = {name: parquet({"a": [1]}) for name in ("one/a.parquet", "two/b.parquet")}


def card(metadata: dict[str, Any]) -> bytes:
    text = io.StringIO()
    YAML().dump(metadata, text)
    return f"---\n{text.getvalue()}---\nSome prose.\n".encode()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"data_files": "one/*"}, {"data_files": "two/*"}),
        ({"data_files": ["one/*.parquet"]}, {"data_files": ["two/*", "two/b.*"]}),
        (
            {"data_files": [{"split": "test", "path": "one/a.parquet"}]},
            {"data_files": [{"split": "test", "path": ["two/*"]}]},
        ),
        ({"data_files": {"test": "one/*"}}, {"data_files": {"test": ["two/*"]}}),
        ({"data_dir": "one"}, {"data_dir": "two"}),
        ({"data_dir": "one", "data_files": "*.parquet"}, {"data_dir": "two", "data_files": "b*"}),
    ],
    ids=["text", "list", "by split", "mapping", "folder", "folder and text"],
)
@pytest.mark.parametrize("fetched", ["one", "two"])
def test_however_a_readme_names_its_data(
    hub: Hub, tmp_path: Path, one: dict[str, Any], two: dict[str, Any], fetched: str
) -> None:
    metadata = {
        "license": "mit",
        "configs": [{"config_name": "one", **one}, {"config_name": "two", **two}],
        "dataset_info": [
            {"config_name": "one", "splits": [{"name": "test", "num_examples": 1}]},
            {"config_name": "two", "splits": [{"name": "test", "num_examples": 2}]},
        ],
    }
    files = {**DATA, "README.md": card(metadata)}
    fetch(tmp_path / "d", a_task(hub, files, ["README.md", f"{fetched}/*"]))
    path = tmp_path / "d/task/README.md"
    kept = metadata_load(path)
    assert [each["config_name"] for each in kept["configs"]] == [fetched]
    assert [each["config_name"] for each in kept["dataset_info"]] == [fetched]
    assert kept["license"] == "mit"
    assert path.read_text().endswith("Some prose.\n")


def test_information_about_all_configurations_is_kept(hub: Hub, tmp_path: Path) -> None:
    metadata = {
        "configs": [{"config_name": "one", "data_files": "one/*"}],
        "dataset_info": {"features": [{"name": "a", "dtype": "int64"}]},
    }
    fetch(
        tmp_path / "d",
        a_task(hub, {**DATA, "README.md": card(metadata)}, ["README.md", "one/*"]),
    )
    assert metadata_load(tmp_path / "d/task/README.md") == metadata


@pytest.mark.parametrize(
    "readme", [b"", b"No head.\n", card({"license": "mit"}), "# é ×\n".encode()]
)
def test_a_readme_without_configurations_stays_as_it_is(
    hub: Hub, tmp_path: Path, readme: bytes
) -> None:
    fetch(tmp_path / "d", a_task(hub, {**DATA, "README.md": readme}, ["README.md", "one/*"]))
    assert (tmp_path / "d/task/README.md").read_bytes() == readme


def test_a_dataset_needs_no_readme(hub: Hub, tmp_path: Path) -> None:
    fetch(tmp_path / "d", a_task(hub, DATA, ["one/*"]))
    assert [p.name for p in (tmp_path / "d/task").iterdir()] == ["one"]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("files", "got"),
    [
        ({"a.parquet": parquet({"b": [1]})}, "columns b"),
        ({"a.parquet": parquet({"a": []})}, "no rows"),
        ({"a.parquet": b"PAR1"}, "parquet"),
        ({"a.parquet": b""}, ""),
        ({"a.jsonl": b'{"b": 1}\n'}, "columns b"),
        ({"a.jsonl": b""}, ""),
        ({"a.jsonl": b"<!DOCTYPE html>"}, ""),
        ({"a.csv": b"a\n1\n"}, "a.csv"),
    ],
    ids=[
        *("another column", "no rows", "no parquet", "nothing", "another key", "no lines", "HTML"),
        "another format",
    ],
)
def test_data_that_cannot_be_used_is_refused_and_nothing_written(
    hub: Hub, tmp_path: Path, files: dict[str, bytes], got: str
) -> None:
    with pytest.raises(InputError) as caught:
        fetch(tmp_path / "d", a_task(hub, files, ["*"]))
    (problem,) = caught.value.problems
    assert problem.what.startswith("mini/task")
    assert got in problem.got
    assert problem.got
    assert not list(tmp_path.glob("*d*")), "nothing half-written"


def test_the_problems_of_all_datasets_are_told_at_once(hub: Hub, tmp_path: Path) -> None:
    pinned = a_task(hub, {"a.parquet": parquet({"a": []})}, ["*"])
    unknown = PINNED["piqa"] | {"commit": "0" * 40}
    fine = PINNED["wikitext"]
    with pytest.raises(InputError) as caught:
        fetch(tmp_path / "d", {**pinned, "piqa": unknown, "wikitext": fine})
    empty, missing = caught.value.problems
    assert empty.got == "no rows"
    assert "no such commit" in missing.got
    assert not list(tmp_path.glob("*d*"))


def test_a_fault_leaves_what_was_there(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "datasets"
    fetch(folder, {"wikitext": PINNED["wikitext"]})
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    hub.faults.append(Fault("hellaswag/resolve", "corrupt", times=None))
    with pytest.raises(InputError, match="other content than the hub lists"):
        fetch(folder, PINNED)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == ["datasets"]


def test_what_the_study_asks_for_is_what_the_hub_has() -> None:
    assert {pinned["repo"]: pinned["commit"] for pinned in PINNED.values()} == {
        repo: DATASETS[repo][0] for repo in DATASETS if "pile" not in repo and "evals" not in repo
    }
