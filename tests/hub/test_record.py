"""The miniatures have the recorded layouts, and the studies pin what is recorded.

record.json is what is known of the real repositories; nobody can ask them here.
"""

import io
import re

import polars as pl
import pytest
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from safetensors.torch import load as load_weights

from tests.hub.miniatures import MODELS, RECORD, ROWS, checkpoint, dataset
from tests.hub.population import PINNED
from tests.project import pinned_datasets


@pytest.mark.parametrize("repo", MODELS)
def test_the_weights_have_the_recorded_tensors(repo: str) -> None:
    made, counts = checkpoint(repo), MODELS[repo]["counts"]
    weights = {}
    for name in [name for name in made if name.endswith(".safetensors")]:
        weights |= load_weights(made[name])
    others = {
        name: str(part.dtype).removeprefix("torch.")
        for name, part in weights.items()
        if re.search(r"attention\.(bias|masked_bias|rotary_emb\.inv_freq)$", name)
    }
    assert len(weights) - len(others) == counts["parameter_tensors"]
    assert len(weights) == counts.get("tensors_in_file", len(weights))
    config = MODELS[repo]["texts"]["config.json"]
    if config["model_type"] == "gpt_neo":
        layers, kinds = config["num_layers"], {"masked_bias": "float32", "bias": "uint8"}
        assert len(others) == layers + layers // 2, "masks in the global layers alone"
    else:
        layers = config["num_hidden_layers"]
        kinds = {"masked_bias": "float16", "bias": "uint8", "inv_freq": "float16"}
        assert len(others) == 3 * layers
    assert {name.rpartition(".")[2]: dtype for name, dtype in others.items()} == kinds


@pytest.mark.parametrize("repo", ROWS)
def test_a_dataset_has_the_recorded_columns(repo: str) -> None:
    for name, data in dataset(repo).items():
        if name.endswith((".parquet", ".jsonl")):
            read = pl.read_parquet if name.endswith(".parquet") else pl.read_ndjson
            assert read(io.BytesIO(data)).columns == list(RECORD[repo]["columns"])


def test_the_numbers_of_documents_are_the_recorded_ones() -> None:
    for pin in pinned_datasets().values():
        counts = RECORD[pin["repo"]]["counts"]
        assert pin["documents"] == counts.get(pin.get("name"), counts)[pin["split"]], pin["repo"]
        assert set(pin["columns"]) <= set(RECORD[pin["repo"]]["columns"])


@pytest.mark.slow
def test_the_datasets_are_those_of_lm_evals_tasks() -> None:
    index = TaskManager().task_index
    for task, pin in PINNED.items():
        own = load_yaml(index[task].yaml_path, resolve_func=False)
        assert pin["repo"] == own["dataset_path"]
        assert pin["name"] == own.get("dataset_name")
        assert pin["split"] == (own.get("test_split") or own["validation_split"])
