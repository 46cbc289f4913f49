"""What the pipeline reads of the hub, file by file, is what the stock library finds by itself."""

import json
from pathlib import Path

import pytest

from pipeline.tasks.datasets import load
from tests.hub.population import DATASETS, PINNED
from tests.hub.server import Hub
from tests.project import python

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
    wanted.append(("NeelNanda/pile-10k", None, DATASETS["NeelNanda/pile-10k"]))
    alone = {"HF_HUB_DISABLE_XET": "1"}
    done = python("-c", LOAD, json.dumps(wanted), **hub.environment(tmp_path / "stock"), **alone)
    for (repo, name, commit), line in zip(wanted, done.stdout.splitlines(), strict=True):
        ours, _ = load(repo, commit, name)
        assert {split: rows.to_list() for split, rows in ours.items()} == json.loads(line), repo
