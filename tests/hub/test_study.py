"""The studies `paper` and `small` against the local hub: all stages, models of the real depths.

Their entries are the real ones; only sizes and the checksums of the GPT-Neo samples are the hub's.
"""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pipeline.measure import metrics, schemas
from pipeline.samples.schemas import read_samples
from pipeline.stages.registry import STAGES
from pipeline.theory import columns
from pipeline.workflow import tables
from tests.hub.population import GPT_NEO, GPT_NEO_SAMPLES, PINNED, PYTHIA
from tests.hub.server import Fault, Hub
from tests.hub.study import copy_project
from tests.project import Project

pytestmark = pytest.mark.slow

SHARED = "pipeline/conf/config.yaml"
"""What every study shares."""

LEFT_OUT = ("pythia-160m", "pythia-410m", "pythia-2.8b", "pythia-6.9b", "gpt-neo-2.7b")
"""Models that are as others but for sizes, and for the two shards of pythia-6.9b, which
tests/checkpoints/test_hub.py fetches."""

TOKEN = "hf_never-to-be-seen"
TWELVE = PYTHIA["EleutherAI/pythia-12b"][0]


def snakemake(run: Project, *arguments: str, check: bool = True) -> CompletedProcess[str]:
    """Project it, with two jobs at a time."""
    command = ("snakemake", "--cores", "2", "--resources", "gpu=2")
    return run.command(*command, *arguments, check=check)


def _checkout(root: Path, hub: Hub, home: Path, **extra: str) -> Project:
    root.mkdir()
    copy_project(root, hub.url + GPT_NEO_SAMPLES, LEFT_OUT)
    run = Project(root, {**hub.environment(home), "HF_TOKEN": TOKEN, **extra})
    # a fault that stays is given up on after one more try
    run.replace("pipeline/workflow/network.py", "WAITS = (1, 2, 4)", "WAITS = (1,)")
    return run


def test_the_paper_study(populated_hub: Hub, tmp_path: Path) -> None:
    """One test, so that tests side by side do not each run the study."""
    online = _through_faults(populated_hub, tmp_path / "home", tmp_path / "online")
    the_report_is_there_and_a_second_run_is_idle(online, "paper", "gpt-neo-1.3b", "pythia-12b")
    every_model_has_every_intervention(online, "paper")
    tables_say_what_determined_them(online)
    the_token_is_in_no_log_and_no_file(online)


def test_the_small_study(populated_hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"  # of the Hugging Face cache, which both runs share
    online = _checkout(tmp_path / "online", populated_hub, home)
    online.replace(SHARED, "shard_minutes: 1", "shard_minutes: 0.0001")
    snakemake(online, "--config", "study=small")
    the_report_is_there_and_a_second_run_is_idle(online, "small", "gpt-neo-125m", "pythia-70m")
    every_model_has_every_intervention(online, "small")
    offline_from_the_cache_gives_the_same_bytes(online, populated_hub, home, tmp_path / "offline")


def _through_faults(populated_hub: Hub, home: Path, root: Path) -> Project:
    """The study, run through three faults that pass and one that stays until the hub is mended."""
    run = _checkout(root, populated_hub, home)
    with populated_hub.kept():
        stays = Fault(f"{TWELVE}/model.safetensors", "corrupt", times=None)
        populated_hub.faults += [
            stays,
            Fault("pythia-1.4b/resolve/.*/model.safetensors", "corrupt"),
            Fault("ai2_arc/resolve/.*parquet", "status", status=500),
            Fault("gpt-neo-1.3B/resolve/.*/config.json", "reset"),
        ]
        first = snakemake(run, "--config", "study=paper", check=False)
        assert first.returncode != 0
        log = (run.root / "logs/paper/checkpoint/pythia-12b.log").read_text()
        assert "other content than the hub lists" in log
        assert "remedy:" in log
        # what does not need that model went on; of it nothing is left
        assert not (run.root / "data/paper/checkpoints/pythia-12b").exists()
        assert (run.root / "data/paper/memorization/pythia-1.4b.parquet").exists()

        populated_hub.faults.remove(stays)
        second = snakemake(run, "--config", "study=paper")
        ran = re.findall(r"^localrule (\w+):", second.stderr, re.MULTILINE)
        # the one model, and what needs all
        # `attribution` is of the study `planted` alone; no table is made in parts
        evaluate = {name for name, of in STAGES.items() if of.evaluates}
        once = evaluate - {"attribution", "windows"} | {"all", "checkpoint", "interventions"}
        once |= {"check_results", "aggregate", "figures", "report"}
        assert Counter(ran) == dict.fromkeys(once, 1)
        assert all(request.authorized for request in populated_hub.log if "/api/" in request.path)
    return run


def the_report_is_there_and_a_second_run_is_idle(online: Project, study: str, *models: str) -> None:
    page = (online.root / f"reports/{study}/index.html").read_text()
    assert all(name in page for name in (*models, "block-11"))
    again = snakemake(online, "--config", f"study={study}", check=False)
    assert "Nothing to be done" in again.stdout + again.stderr


def every_model_has_every_intervention(online: Project, study: str) -> None:
    data = online.root / "data" / study
    seen = 0
    for family, models in (("pythia", PYTHIA), ("gpt-neo", GPT_NEO)):
        samples = read_samples(data, family)
        assert Counter(samples["split"]) == {"memorized": 4, "control": 2}
        for repo, (commit, blocks) in models.items():
            name = repo.split("/")[1].lower()
            if not (data / "checkpoints" / name).exists():
                continue  # a model of the other study, or of none
            seen += 1
            manifest = json.loads((data / "checkpoints" / name / "manifest.json").read_text())
            assert manifest["origin"] == {"repo": repo, "commit": commit}
            assert manifest["n_blocks"] == blocks
            assert not any(file.endswith(".bin") for file in manifest["files"])
            table = tables.read(data / "memorization" / f"{name}.parquet", metrics.MEMORIZATION)
            assert table["intervention"].n_unique() == 1 + blocks + 4
            assert len(table) == (1 + blocks + 4) * len(samples)
            scores = tables.read(data / "benchmarks" / f"{name}.parquet", schemas.BENCHMARKS)
            assert set(scores["task"]) == set(PINNED)
            assert scores["intervention"].n_unique() == 1 + blocks + 4
            written = tables.read(data / "generations" / f"{name}.parquet", schemas.GENERATIONS)
            assert written["intervention"].n_unique() == 1 + 5
            bounded = data / "divergence" / f"{name}.bounds.parquet"
            bounds = tables.read(bounded, columns.DIVERGENCE_BOUNDS)
            assert len(bounds) == blocks * (4 + 2)
            assert not bounds["violated"].any()
    assert seen == {"paper": 3, "small": 2}[study]


def tables_say_what_determined_them(online: Project) -> None:
    path = online.root / "data/paper/benchmarks/pythia-12b.parquet"
    said = tables.provenance(path)
    assert said["origin"]["commit"] == TWELVE
    assert said["evaluation"]["dtype"] == "float16"
    assert said["tasks"]["arc_easy"]["version"] == 1.0
    assert said["tasks"]["arc_easy"]["repo"] == "allenai/ai2_arc"
    assert len(said["tasks"]["wikitext"]["documents_sha256"]) == 64


def the_token_is_in_no_log_and_no_file(online: Project) -> None:
    assert not [log for log in (online.root / "logs").rglob("*.log") if TOKEN in log.read_text()]
    for path in [*(online.root / "data").rglob("*"), *(online.root / "reports").rglob("*")]:
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


def offline_from_the_cache_gives_the_same_bytes(
    online: Project, populated_hub: Hub, home: Path, root: Path
) -> None:
    """Another checkout, without a hub and in parts: neither left a trace in the tables."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    run = _checkout(root, populated_hub, home, **offline)
    run.replace(SHARED, "shard_minutes: 1", "shard_minutes: 0.0001")
    run.replace(SHARED, "\nparts: 1\n", "\nparts: 2\n")
    # the GPT-Neo samples are no part of the Hugging Face cache
    shutil.copytree(online.root / "data/downloads", run.root / "data/downloads")
    made = [
        "samples/pythia.parquet",
        "samples/gpt-neo.parquet",
        "checkpoints/pythia-70m/manifest.json",
        "memorization/gpt-neo-125m.parquet",
        "benchmarks/gpt-neo-125m.documents.parquet",
        "generations/gpt-neo-125m.parquet",
    ]
    with populated_hub.kept():
        targets = [f"data/small/{path}".removesuffix("/manifest.json") for path in made]
        snakemake(run, "--config", "study=small", "--", *targets)
        assert not populated_hub.log
    parts = run.root / "data/small/parts/memorization/gpt-neo-125m"
    assert [len(list((parts / each).glob("*/*"))) for each in ("1-of-2", "2-of-2")] == [3, 3]
    for path in made:
        ours, theirs = (root / "data/small" / path for root in (run.root, online.root))
        assert ours.read_bytes() == theirs.read_bytes(), path
