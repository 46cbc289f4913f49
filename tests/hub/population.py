"""The hub with all that the project asks of it, at the commits that the project pins."""

from typing import Any

from tests.hub import miniatures
from tests.hub.server import Hub
from tests.project import pinned_datasets


def _models(kind: str) -> dict[str, tuple[str, int]]:
    return {
        repo: (entry["commit"], config["num_layers" if kind == "gpt_neo" else "num_hidden_layers"])
        for repo, entry in miniatures.MODELS.items()
        if (config := entry["texts"]["config.json"])["model_type"] == kind
    }


PYTHIA = _models("gpt_neox")
GPT_NEO = _models("gpt_neo")
"""Repository: commit and number of blocks, which is the real one."""

SHARDED = "EleutherAI/pythia-6.9b"
PICKLE_ONLY = "mini/pickle-only"

DATASETS: dict[str, str] = {
    repo: miniatures.RECORD[repo]["commit"] for repo in (*miniatures.ROWS, miniatures.EVALS)
}
"""Repository: commit."""

PINNED: dict[str, dict[str, Any]] = {
    task: {"name": None, **pin, "documents": miniatures.DOCUMENTS}
    for task, pin in pinned_datasets().items()
}
"""Task of lm-eval: its dataset as the studies pin it, with the documents of the miniature."""

GPT_NEO_SAMPLES = (
    "/raw/ethz-privsec/lm-extraction-benchmark-data"
    "/5a3286942710076d56024cfdb296f7c585cd2b7c/datasets"
)
"""The path of the folder of the GPT-Neo samples, which are not on the hub."""


def populate(hub: Hub) -> None:
    """Add all repositories and the GPT-Neo samples to a hub that has none of them yet."""
    for name, (commit, _) in {**PYTHIA, **GPT_NEO}.items():
        hub.model(name).add(miniatures.checkpoint(name), commit)
    hub.model(PICKLE_ONLY).add(miniatures.pythia(2, pickle_only=True))
    for name, commit in DATASETS.items():
        hub.dataset(name).add(miniatures.dataset(name), commit)
    for name, data in miniatures.gpt_neo_samples().items():
        hub.files[f"{GPT_NEO_SAMPLES}/{name}"] = data
