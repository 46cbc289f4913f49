"""The miniatures have the recorded layouts, and the studies pin what is recorded.

record.json is what is known of the real repositories; nobody can ask them here.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml
from ruamel.yaml import YAML
from safetensors.torch import load as load_weights

from pipeline.tasks import datasets
from pipeline.workflow.hub import CHECKPOINT_FILES, Kind
from tests.hub.miniatures import EVALS, RECORD, checkpoint
from tests.hub.population import BUILDERS, GPT_NEO, PYTHIA
from tests.hub.server import Hub
from tests.project import ROOT

STUDIES = {
    name: YAML(typ="safe").load(ROOT / "pipeline/conf/study" / f"{name}.yaml")
    for name in ("paper", "small")
}
MODELS = {repo: entry for repo, entry in RECORD.items() if entry["kind"] == "model"}

SIZES = {
    *("hidden_size", "intermediate_size", "vocab_size", "window_size", "max_position_embeddings"),
    *("num_attention_heads", "num_heads", "bos_token_id", "eos_token_id"),
}
"""What is smaller in a miniature's config.json."""


def paths(repo: str) -> set[str]:
    return {file["path"] for file in RECORD[repo]["files"]}


def pins(value: Any) -> list[tuple[str, str]]:
    """Repository and commit of every pin below a value of a study."""
    if isinstance(value, list):
        return [pin for each in value for pin in pins(each)]
    if not isinstance(value, dict):
        return []
    own = [(value["repo"], value["commit"])] if "repo" in value else []
    return own + [pin for each in value.values() for pin in pins(each)]


# ---------------------------------------------------------------------- miniatures


@pytest.mark.parametrize("repo", MODELS)
def test_a_model_has_the_recorded_files_and_texts(repo: str) -> None:
    made, texts = checkpoint(repo), RECORD[repo]["texts"]
    assert set(made) == paths(repo)
    for name in set(texts) - {"config.json"}:
        text = json.loads(made[name])
        smaller = {"model_max_length", "bos_token_id", "eos_token_id"} & texts[name].keys()
        assert {**text, **{key: texts[name][key] for key in smaller}} == texts[name], name
    config, real = json.loads(made["config.json"]), texts["config.json"]
    assert config.keys() == real.keys()
    assert {key for key in real if config[key] != real[key]} <= SIZES


@pytest.mark.parametrize("repo", MODELS)
def test_the_weights_have_the_recorded_tensors(repo: str) -> None:
    made, counts = checkpoint(repo), RECORD[repo]["counts"]
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
    config = RECORD[repo]["texts"]["config.json"]
    if config["model_type"] == "gpt_neo":
        layers, kinds = config["num_layers"], {"masked_bias": "float32", "bias": "uint8"}
        assert len(others) == layers + layers // 2, "masks in the global layers alone"
    else:
        layers = config["num_hidden_layers"]
        kinds = {"masked_bias": "float16", "bias": "uint8", "inv_freq": "float16"}
        assert len(others) == 3 * layers
    assert {name.rpartition(".")[2]: dtype for name, dtype in others.items()} == kinds


@pytest.mark.parametrize("repo", BUILDERS)
def test_a_dataset_has_the_recorded_files_and_columns(repo: str) -> None:
    made = BUILDERS[repo]()
    if repo == EVALS:  # most names are not known
        assert paths(repo) <= set(made)
        form = r"data/(de)?duped\.[\w.]+-\d{5}-of-\d{5}(-[0-9a-f]{16})?\.parquet"
        assert all(re.fullmatch(form, name) for name in set(made) if "/" in name)
    else:
        assert set(made) == paths(repo)
    for name, data in made.items():
        if name.endswith(".parquet"):
            assert set(pq.read_schema(io.BytesIO(data)).names) == set(RECORD[repo]["columns"])
        elif name.endswith(".jsonl"):
            assert pl.read_ndjson(data).columns == list(RECORD[repo]["columns"])
    told = RECORD[repo].get("front_matter", "")
    without_numbers = re.sub(r"(num_examples: )\d+", r"\1N", told)
    readme = re.sub(r"(num_examples: )\d+", r"\1N", made.get("README.md", b"").decode())
    assert without_numbers in readme


# ---------------------------------------------------------------------- pins


@pytest.mark.parametrize("name", STUDIES)
def test_every_pin_is_recorded(name: str) -> None:
    found = pins(STUDIES[name])
    assert len(found) > 10
    assert dict(found) == {repo: RECORD[repo]["commit"] for repo, _ in found}


@pytest.mark.parametrize("name", STUDIES)
def test_the_numbers_of_documents_are_the_recorded_ones(name: str) -> None:
    for pin in STUDIES[name]["datasets"][name].values():
        counts = RECORD[pin["repo"]]["counts"]
        assert pin["documents"] == counts.get(pin.get("name"), counts)[pin["split"]], pin["repo"]
        assert set(pin["columns"]) <= set(RECORD[pin["repo"]]["columns"])


@pytest.mark.slow
def test_the_datasets_are_those_of_lm_evals_tasks() -> None:
    index = TaskManager().task_index
    for name, study in STUDIES.items():
        for task, pin in study["datasets"][name].items():
            own = load_yaml(index[task].yaml_path, resolve_func=False)
            assert pin["repo"] == own["dataset_path"]
            assert pin.get("name") == own.get("dataset_name")
            assert pin["split"] == (own.get("test_split") or own["validation_split"])


@pytest.mark.parametrize("repo", MODELS)
def test_the_kinds_of_file_are_those_that_are_needed(hub: Hub, repo: str) -> None:
    wanted = {"config.json", "special_tokens_map.json", "tokenizer_config.json"}
    wanted |= {p for p in paths(repo) if p.endswith(".safetensors")}
    wanted |= {"tokenizer.json", "vocab.json", "merges.txt", "model.safetensors.index.json"}
    kinds = {kind.removeprefix("*") for kind in CHECKPOINT_FILES}
    chosen = {path for path in paths(repo) if any(path.endswith(kind) for kind in kinds)}
    assert chosen >= wanted & paths(repo)
    assert chosen - wanted <= {"generation_config.json", "pytorch_model.bin.index.json"}


def test_the_record_has_ten_models() -> None:
    assert {**PYTHIA, **GPT_NEO}.keys() == MODELS.keys()


# ---------------------------------------------------------------------- what a layout once broke

FOUND = {
    "allenai/ai2_arc": ("ARC-Easy", "ARC-Easy/{}-00000-of-00001.parquet"),
    "Rowan/hellaswag": (None, "data/{}-00000-of-00001.parquet"),
    "baber/piqa": (None, "piqa_{}.parquet"),
    "EleutherAI/wikitext_document_level": (
        "wikitext-2-raw-v1",
        "wikitext-2-raw-v1/wikitext-2-raw-v1-{}.parquet",
    ),
}


@pytest.mark.usefixtures("hub_home")
@pytest.mark.parametrize("repo", FOUND)
def test_the_files_of_a_configuration_are_found(hub: Hub, repo: str) -> None:
    name, form = FOUND[repo]
    commit = RECORD[repo]["commit"]
    assert datasets.find_files(repo, commit, name) == [
        form.format(split) for split in ("test", "train", "validation")
    ]
    kind: Kind = "dataset"
    assert not hub.requests(f"{kind}s/{repo}/resolve/.*(parquet|jsonl)")


@pytest.mark.usefixtures("hub_home")
def test_lambada_is_english_and_once(hub: Hub) -> None:
    """Its repository has five languages, and English twice, as lines of JSON beside the parquet."""
    repo = "EleutherAI/lambada_openai"
    data, files = datasets.load(repo, RECORD[repo]["commit"], "default")
    assert set(files) == {"README.md", "default/test/default.parquet"}
    assert set(data) == {"test"}
    assert len(data["test"]) == 8
    assert all(text.startswith("en ") for text in data["test"]["text"])
