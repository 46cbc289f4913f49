"""Audit of one's own checkpoint on one's own samples."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pipeline import __main__ as commands
from pipeline import audit, tables
from pipeline.checkpoints.manifest import sha256
from pipeline.errors import InputError
from pipeline.measure import memorization
from tests.hub import miniatures
from tests.hub.population import PYTHIA
from tests.hub.server import Hub

ROOT = Path(__file__).parents[1]
REPO = "EleutherAI/pythia-70m"
COMMIT, BLOCKS = PYTHIA[REPO]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's checkpoint: whatever lies in such folders, pickles included."""
    made = tmp_path_factory.mktemp("mine")
    for name, content in miniatures.pythia(4).items():
        (made / name).write_bytes(content)
    (made / "notes.txt").write_text("mine")
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return loaded


def _file(tmp_path: Path, **columns: object) -> Path:
    path = tmp_path / "samples.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return path


def test_a_folder_is_described_without_its_pickles(folder: Path, tmp_path: Path) -> None:
    manifest = audit.checkpoint(str(folder), "mine", tmp_path / "described")
    assert manifest.n_blocks == 4
    assert manifest.origin == {"folder": str(folder)}
    assert "model.safetensors" in manifest.files
    assert not {"pytorch_model.bin", "notes.txt"} & set(manifest.files)
    assert [path.name for path in (tmp_path / "described").iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("model", ["nowhere", "a/b", "a/b@main", f"a/b@{COMMIT[:39]}", "a@b@c"])
def test_a_model_that_is_neither_folder_nor_commit_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="REPO@COMMIT"):
        audit.checkpoint(model, "mine", tmp_path / "described")
    assert not (tmp_path / "described").exists()


@pytest.mark.parametrize("name", ["", "a/b", "..", "-x", "a b", "a\n"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--name"):
        audit.require_name(name)


def test_tokens_are_cut_and_splits_and_copies_kept(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    file = _file(
        tmp_path,
        tokens=[[1, 2, 3, 4, 5], [6, 7, 8, 9], [1, 2, 8, 9]],
        split=["memorized", "control", "exposed"],
        copies=[64, 0, None],
    )
    made = audit.samples(file, tokenizer, 1, 3, skip_short=False)
    assert made["tokens"].to_list() == [[1, 2, 3, 4], [6, 7, 8, 9], [1, 2, 8, 9]]
    assert made["split"].to_list() == ["memorized", "control", "exposed"]
    assert made["copies"].to_list() == [64, 0, None]
    tables.write(made, tmp_path / "t.parquet", tables.SAMPLES, {})


def test_text_is_cut_by_the_models_tokenizer(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    texts = ["the house by the river", "red bread and milk under the tree"]
    made = audit.samples(_file(tmp_path, text=texts), tokenizer, 2, 2, skip_short=False)
    assert made["tokens"].to_list() == [tokenizer(text)["input_ids"][:4] for text in texts]
    assert made["split"].to_list() == ["memorized"] * 2


def test_lengths_in_the_file_are_taken(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    file = _file(tmp_path, tokens=[[1, 2, 3]], prefix_length=[2], suffix_length=[1])
    made = audit.samples(file, tokenizer, None, None, skip_short=False)
    assert made.select("prefix_length", "suffix_length").row(0) == (2, 1)


def test_short_samples_are_refused_or_left_out_with_their_rows_named(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    file = _file(tmp_path, tokens=[[1, 2, 3, 4], [1], [5, 6, 7, 8]])
    with pytest.raises(InputError, match="row 1\n"):
        audit.samples(file, tokenizer, 2, 2, skip_short=False)
    made = audit.samples(file, tokenizer, 2, 2, skip_short=True)
    assert made["row"].to_list() == [0, 2]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"ids": [[1]]}, "a column `tokens`"),
        ({"tokens": ["one"]}, "tokens"),
        ({"text": [None]}, "1 nulls"),
        ({"tokens": [[1, 2]], "split": ["train"]}, "train"),
        ({"tokens": [[1, 2]], "copies": ["many"]}, "copies"),
        ({"tokens": [[1, 2]]}, "--suffix-length"),
        ({"tokens": pl.Series([], dtype=pl.List(pl.Int64))}, "no sample"),
    ],
)
def test_other_tables_are_refused(
    columns: dict[str, object], told: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    lengths = (1, None) if "--" in told else (1, 1)
    with pytest.raises(InputError, match=told):
        audit.samples(_file(tmp_path, **columns), tokenizer, *lengths, skip_short=False)


def test_no_parquet_file_is_refused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    (tmp_path / "x").write_text("not a table")
    for path in (tmp_path / "x", tmp_path / "y"):
        with pytest.raises(InputError, match="a whole parquet file"):
            audit.samples(path, tokenizer, 1, 1, skip_short=False)


def test_both_columns_are_told_which_is_used(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path, tokens=[[1, 2]], text=["the house by the river"])
    made = audit.samples(file, tokenizer, 1, 1, skip_short=False)
    assert made["tokens"].to_list() == [[1, 2]]
    assert (
        capsys.readouterr().out == "the samples have both `tokens` and `text`: `tokens` is used\n"
    )


@pytest.mark.parametrize(
    "copies",
    [
        pl.Series([3.0, None]),
        pl.Series([3, None], dtype=pl.UInt8),
        pl.Series([None, None], dtype=pl.Null),
    ],
)
def test_copies_may_be_whole_floats_and_text_a_category(
    copies: pl.Series, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    text = pl.Series(["the house", "the river"], dtype=pl.Categorical)
    split = pl.Series([b"control", b"exposed"])
    file = _file(tmp_path, text=text, split=split, copies=copies)
    made = audit.samples(file, tokenizer, 1, 1, skip_short=False)
    assert made["copies"].to_list() == copies.to_list()
    assert made["split"].to_list() == ["control", "exposed"]


def test_the_warning_of_an_audit_is_about_an_audit(capsys: pytest.CaptureFixture[str]) -> None:
    audit.warn({})
    audit.warn({"exact_match": 0.85, "low": 0.8, "high": 0.91, "n": 64})
    assert capsys.readouterr().out == ""
    audit.warn({"exact_match": 0.5, "low": 0.4, "high": 0.6, "n": 64})
    said = capsys.readouterr().out
    assert "exact match 0.500" in said
    assert "--dtype" in said
    assert "params.yaml" not in said


def _contents(*folders: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_lies_under_a_name_is_of_one_run(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which the command sets as well
    one, other = tmp_path / "one", tmp_path / "other"
    shutil.copytree(folder, one)
    shutil.copytree(folder, other)
    file = _file(tmp_path, tokens=[[1, 2, 3, 4], [5, 6, 7, 8]])
    data, reports = Path("data/audit-mix"), Path("reports/audit-mix")

    def run(model: Path, suffix_length: int = 2) -> None:
        commands.audit(str(model), file, "mix", 2, suffix_length, dtype="float32")

    run(one)
    assert "params.yaml" not in capsys.readouterr().out
    first = _contents(data, reports)
    derived = {str(data / "summary.parquet"), str(data / "memorization/mix.parquet")}
    assert {*derived, str(reports / "index.html")} < set(first)

    with pytest.raises(InputError, match=r"--name: data/audit-mix[\s\S]*another --name, or delete"):
        run(other)
    with pytest.raises(InputError, match="row 0 and 1 more"):
        run(one, suffix_length=3)
    assert _contents(data, reports) == first, "what is refused leaves all as it was"

    weights = load_file(one / "model.safetensors")
    save_file({k: v * float("nan") for k, v in weights.items()}, one / "model.safetensors")
    with pytest.raises(InputError, match="finite"):
        run(one)
    left = {path for path in _contents(data, reports) if "/cost/" not in path}
    new = ("checkpoints/mix/manifest.json", "interventions/mix.parquet", "samples/audit.parquet")
    assert left == {str(data / each) for each in new}, "nothing is left of the first run"
    manifest = data / new[0]
    assert sha256(one / "model.safetensors") in manifest.read_text()

    manifest.write_text("{")
    with pytest.raises(InputError, match="delete data/audit-mix and reports/audit-mix"):
        run(one)


def test_a_checkpoint_of_the_hub_ends_in_a_report(populated_hub: Hub, tmp_path: Path) -> None:
    """By the command itself, in a folder that holds nothing else."""
    file = _file(tmp_path, text=[f"the {word} by the old river " * 12 for word in ("cat", "dog")])
    environment = {
        **os.environ,
        **populated_hub.environment(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = ["audit", "--model", f"{REPO}@{COMMIT}", "--samples", str(file), "--name", "mine"]
    lengths = ["--prefix-length", "8", "--suffix-length", "4", "--dtype", "float32"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *command, *lengths],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "exact match" in done.stdout
    page = (tmp_path / "reports/audit-mine/index.html").read_text(encoding="utf-8")
    assert "Study “audit-mine”" in page
    table = tables.read(tmp_path / "data/audit-mine/memorization/mine.parquet", tables.MEMORIZATION)
    assert len(table) == (1 + BLOCKS + 4) * 2
    summary = tables.read(tmp_path / "data/audit-mine/summary.parquet", tables.SUMMARY)
    assert set(summary["task"]) == {"memorization"}


def test_more_threads_than_the_machine_can_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    audit.require_threads(8)
    with pytest.raises(InputError, match=r"--threads\s+got: +9\s+expected: 1 to 8"):
        audit.require_threads(9)


def test_the_token_budget_reaches_the_engine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    budgets = []
    engine = memorization.complete

    def noted(*arguments: Any, token_budget: int | None, **rest: Any) -> Any:
        budgets.append(token_budget)
        return engine(*arguments, token_budget=token_budget, **rest)

    monkeypatch.setattr(memorization, "complete", noted)
    file = _file(tmp_path, tokens=[[1, 2, 3, 4], [5, 6, 7, 8]])
    commands.audit(str(folder), file, "mix", 2, 2, dtype="float32", token_budget=77)
    assert set(budgets) == {77}
    listed = tables.read("data/audit-mix/interventions/mix.parquet", tables.INTERVENTIONS)
    measured = tables.read("data/audit-mix/memorization/mix.parquet", tables.MEMORIZATION)
    assert measured["intervention"].unique(maintain_order=True).equals(listed["intervention"])
