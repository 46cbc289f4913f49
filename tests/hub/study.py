"""The real studies, made small enough for the local hub: the same entries, other sizes."""

import hashlib
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import safetensors.torch
from ruamel.yaml import YAML

from tests.hub import miniatures
from tests.project import ROOT, commit_all, copy_files

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "associative": {"widths": [8], "trained_widths": [8], "steps": 2},
    "lookup": {"vocabulary": 20, "widths": [16], "contexts": 20},
    "low-rank": {"ranks": [2, 4]},
    "constructive": {"vocabulary": 8, "width": 4, "head_width": 4, "heads": [1, 2]},
    "attention-only": {"vocabulary": 8, "steps": 2, "narrow_steps": 2},
}
"""What is smaller than in the real studies: the sizes of the experiments without a model."""


def miniature(name: str, samples_url: str, left_out: Collection[str]) -> str:
    """The YAML of a study of pipeline/conf/study/ whose sizes and checksums are the local hub's.

    Repositories, commits, configurations, splits and lengths are the real study's, without some of
    its models. `samples_url` is the folder of the GPT-Neo samples.
    """
    yaml = YAML()
    values: dict[str, Any] = yaml.load(ROOT / "pipeline/conf/study" / f"{name}.yaml")
    models = values["models"]
    for key in [key for key, model in models.items() if model["name"] in left_out]:
        del models[key]
    for key, family in values["families"].items():
        source = family["samples"]
        source["n_memorized"], source["control"]["n"] = 4, 2
        if key.endswith("-gpt-neo"):
            source["url"] = samples_url
            source["sha256"] = {
                file: hashlib.sha256(content).hexdigest()
                for file, content in miniatures.gpt_neo_samples().items()
            }
    tasks = values["benchmarks"]["tasks"]
    values["datasets"] = {name: {task: {"documents": miniatures.DOCUMENTS} for task in tasks}}
    for model in values["models"].values():
        model["checkpoint"]["billions"] = _billions(model["checkpoint"]["repo"])
    values["generations"] = {"new_tokens": 8}
    values["divergence"]["samples"] = 4
    # the experiments of `small` are those of `tiny`, and read nothing of the hub
    values["defaults"] = [each for each in values["defaults"] if "/theory/" not in str(each)]
    for key, experiment in values.get("theory", {}).items():
        experiment |= EXPERIMENTS[key.removeprefix(f"{name}-")]
    for family in values["evaluation"].values():
        family["baseline_floor"] = 0.0  # random weights have memorized nothing
    text = io.StringIO()
    yaml.dump(values, text)
    return "# @package _global_\n" + text.getvalue()


def _billions(repo: str) -> float:
    """The size of a miniature, from its safetensors, but for masks and angles."""
    files = miniatures.checkpoint(repo)
    shards = [
        safetensors.torch.load(files[path]) for path in files if path.endswith(".safetensors")
    ]
    others = ("attention.bias", "masked_bias", "inv_freq")
    weights = {name: part for shard in shards for name, part in shard.items()}
    sizes = [part.numel() for name, part in weights.items() if not name.endswith(others)]
    return round(sum(sizes) / 1e9, 8)


def copy_project(root: Path, samples_url: str, left_out: Collection[str] = ()) -> None:
    """The project in a git repository of its own in an empty folder, its studies miniatures."""
    copy_files(root)
    for name in ("paper", "small"):
        study = root / "pipeline/conf/study" / f"{name}.yaml"
        study.write_text(miniature(name, samples_url, left_out))
    commit_all(root)
