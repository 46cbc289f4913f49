"""The studies `twins` and `hubble`: models that were shown records, and twins that were not.

`twins` is run first, with fewer records. The local hub then serves its two models and its records
in Hubble's layout, and `hubble` reads them from there: both must see the same.
"""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML
from transformers import AutoTokenizer

from pipeline.analysis.memorized import COUNTERFACTUAL
from pipeline.analysis.rows import SUMMARY
from pipeline.corpus.schemas import RECORDS
from pipeline.workflow import tables
from tests.hub.server import Hub
from tests.project import Project, commit_all, copy_files

pytestmark = pytest.mark.slow

OWNER = "allegrolab"
KEPT = ("hubble-1b-perturbed", "hubble-1b-standard")
"""Models of the study `hubble` that its miniature has, one pair of two."""


BILLIONS = 2.4e-4
"""Of the parameters of a Llama of three blocks, width 64 and 640 words."""


def test_a_twin_shows_what_was_memorized(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    copy_files(root)
    _shrink_twins(root)
    _shrink_hubble(root)
    commit_all(root)
    with Hub() as hub:
        project = Project(root, hub.environment(tmp_path / "home"))
        twins = "data/twins/summary.parquet"
        project.command("snakemake", "--cores", "2", twins, "--config", "study=twins")
        own = _surface(root, "twins", "perturbed")
        _more_copies_more_memory(own)

        commits = _serve(hub, root / "data/twins")
        refused = project.command("python", "-m", "pipeline", "study", "hubble", check=False)
        assert refused.returncode == 2
        assert "python -m pipeline pin STUDY" in refused.stderr
        pin = ("python", "-m", "pipeline", "pin", "hubble")
        told = project.command(*pin).stdout
        assert all(commit in told for commit in commits)
        assert "already" in project.command(*pin).stdout
        text = (root / "pipeline/conf/study/hubble.yaml").read_text()
        assert "commit: main" not in text

        project.command("snakemake", "--cores", "2", "--config", "study=hubble")
    fetched = _surface(root, "hubble", "1b-perturbed")
    measured = ["intervention", "copies", "value", "low", "high", "n"]
    assert fetched.select(measured).equals(own.select(measured))
    page = (root / "reports/hubble/index.html").read_text()
    assert "Beyond its twin, 1b-perturbed recites" in page


def _shrink_twins(root: Path) -> None:
    """Fewer records and blocks, no benchmarks."""
    path = root / "pipeline/conf/study/twins.yaml"
    study: dict[str, Any] = YAML().load(path)
    study["corpus"]["twins"] |= {
        "world_tokens": 40_000,
        "records": {1: 24, 16: 24, 64: 24},
        "control_records": 48,
    }
    for model in study["models"].values():
        model["checkpoint"]["n_blocks"] = 3
    study["interventions"] = study["interventions"][:1]
    study["benchmarks"] = None
    _dump(study, path)


def _shrink_hubble(root: Path) -> None:
    """One pair, the size, samples and precision of the study `twins`, no benchmarks."""
    lengths = YAML().load(root / "pipeline/conf/study/twins.yaml")["families"]["twins-records"]
    path = root / "pipeline/conf/study/hubble.yaml"
    study: dict[str, Any] = YAML().load(path)
    for family in study["families"].values():
        family |= {key: lengths[key] for key in ("prefix_length", "suffix_length")}
        family["samples"]["memorized_copies"] = lengths["samples"]["memorized_copies"]
    study["models"] = {key: study["models"][key] for key in KEPT}
    for model in study["models"].values():
        model["checkpoint"]["billions"] = BILLIONS
    study["interventions"] = study["interventions"][:1]
    study["benchmarks"], study["datasets"] = None, {}
    study["evaluation"]["passages"]["dtype"] = "float32"
    _dump(study, path)


def _dump(values: dict[str, Any], path: Path) -> None:
    with path.open("w") as file:
        file.write("# @package _global_\n")
        YAML().dump(values, file)


def _serve(hub: Hub, data: Path) -> list[str]:
    """Hubble's layout: a repository for each model, the texts as CSV by split; their commits."""
    commits = []
    for key in KEPT:
        size, name = key.split("-")[1:]
        folder = data / "checkpoints" / name
        files = {
            path.name: path.read_bytes()
            for path in folder.iterdir()
            if path.name not in ("manifest.json", "training.json")
        }
        commits.append(hub.model(f"{OWNER}/hubble-{size}-100b_toks-{name}-hf").add(files))
    tokenizer = AutoTokenizer.from_pretrained(data / "corpus/tokenizer")
    records = tables.read(data / "corpus/records.parquet", RECORDS)
    texts = records.select(
        text=pl.Series([tokenizer.decode(each) for each in records["tokens"].to_list()]),
        meta=pl.lit(json.dumps({})),
        duplicates=pl.col("copies").cast(pl.Int64),
    )
    split = {"train": pl.col("duplicates") > 0, "test": pl.col("duplicates") == 0}
    csv = {f"{name}.csv": texts.filter(rows).write_csv().encode() for name, rows in split.items()}
    commits.append(hub.dataset(f"{OWNER}/passages_wikipedia").add(csv))
    return commits


def _surface(root: Path, study: str, model: str) -> pl.DataFrame:
    summary = tables.read(root / f"data/{study}/summary.parquet", SUMMARY)
    return summary.filter(model=model, metric=COUNTERFACTUAL).sort("copies", "intervention")


def _more_copies_more_memory(surface: pl.DataFrame) -> None:
    """The unmodified model recites more of what it saw more often, and nothing that it did not."""
    whole = surface.filter(intervention="baseline")
    assert whole["copies"].to_list() == [0, 1, 16, 64]
    assert whole["value"].is_sorted()
    never, most = whole.row(0, named=True), whole.row(-1, named=True)
    assert never["low"] < 0 < never["high"] < most["low"]
    assert never["value"] == 0
    # a block without which the model recites less
    one = surface.filter(pl.col("block") == 1, copies=64).row(0, named=True)
    assert one["high"] < most["low"]
