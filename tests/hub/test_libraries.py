"""Why the pipeline hands files to the libraries, and does not let them ask the hub themselves.

What they find there is the same: the rows of every dataset, and the tokenizer, where the hub has no
faults. Each test runs the stock library in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.tasks.datasets import load
from pipeline.workflow.errors import InputError
from pipeline.workflow.hub import CHECKPOINT_FILES, snapshot
from tests.hub.population import DATASETS, GPT_NEO, PINNED
from tests.hub.server import Fault, Hub

NEO = "EleutherAI/gpt-neo-125m"

LOAD = """
import json, sys
from datasets import load_dataset
for repo, name, commit in json.loads(sys.argv[1]):
    data = load_dataset(repo, name, revision=commit, token=False)
    print(json.dumps({split: rows.to_list() for split, rows in data.items()}))
"""

TOKENIZE = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], revision=sys.argv[2], token=False)
print(tokenizer.special_tokens_map)
"""

pytestmark = pytest.mark.usefixtures("hub_home")


def stock(
    hub: Hub, home: Path, script: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of the stock libraries; the client is told what the pipeline tells itself."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={
            **os.environ,
            **hub.environment(home),
            "HF_HUB_DISABLE_XET": "1",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        capture_output=True,
        text=True,
    )


def test_datasets_finds_the_same_by_itself(hub: Hub, tmp_path: Path) -> None:
    wanted = [(pin["repo"], pin["name"], pin["commit"]) for pin in PINNED.values()]
    wanted.append(("NeelNanda/pile-10k", None, DATASETS["NeelNanda/pile-10k"][0]))
    done = stock(hub, tmp_path / "stock", LOAD, json.dumps(wanted))
    assert done.returncode == 0, done.stderr
    for (repo, name, commit), line in zip(wanted, done.stdout.splitlines(), strict=True):
        ours, _ = load(repo, commit, name)
        assert {split: rows.to_list() for split, rows in ours.items()} == json.loads(line), repo


def test_datasets_reads_nothing_offline_but_what_it_has_loaded(hub: Hub, hub_home: Path) -> None:
    pin = PINNED["piqa"]
    snapshot(pin["repo"], pin["commit"], ["*"], "dataset")
    wanted = json.dumps([(pin["repo"], None, pin["commit"])])
    done = stock(hub, hub_home, LOAD, wanted, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    assert done.returncode != 0
    assert "baber/piqa" in done.stderr


def test_transformers_takes_an_error_of_the_hub_for_a_missing_file(
    hub: Hub, tmp_path: Path
) -> None:
    commit = GPT_NEO[NEO][0]
    hub.faults.append(Fault("tokenizer_config.json", "status", "GET|HEAD", times=None, status=403))
    done = stock(hub, tmp_path / "stock", TOKENIZE, NEO, commit)
    assert done.returncode == 0, "and nothing is said"
    with pytest.raises(InputError, match="HF_TOKEN"):
        snapshot(NEO, commit, CHECKPOINT_FILES)
    hub.faults.clear()
    assert "tokenizer_config.json" in snapshot(NEO, commit, CHECKPOINT_FILES).files
