"""What the pipeline reads of the hub, file by file, is what the stock library finds by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.tasks.datasets import load
from tests.hub.population import DATASETS, PINNED
from tests.hub.server import Hub

LOAD = """
import json, sys
from datasets import load_dataset
for repo, name, commit in json.loads(sys.argv[1]):
    data = load_dataset(repo, name, revision=commit, token=False)
    print(json.dumps({split: rows.to_list() for split, rows in data.items()}))
"""


@pytest.mark.usefixtures("hub_home")
def test_datasets_finds_the_same_by_itself(hub: Hub, tmp_path: Path) -> None:
    wanted = [(pin["repo"], pin["name"], pin["commit"]) for pin in PINNED.values()]
    wanted.append(("NeelNanda/pile-10k", None, DATASETS["NeelNanda/pile-10k"][0]))
    alone = {"HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps(wanted)],
        env=os.environ | hub.environment(tmp_path / "stock") | alone,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for (repo, name, commit), line in zip(wanted, done.stdout.splitlines(), strict=True):
        ours, _ = load(repo, commit, name)
        assert {split: rows.to_list() for split, rows in ours.items()} == json.loads(line), repo
