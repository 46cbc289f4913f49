"""The hub with all that the project asks of it, at the commits that the project pins."""

from __future__ import annotations

from tests.hub import miniatures
from tests.hub.server import Hub

PYTHIA = {
    "EleutherAI/pythia-70m": ("a39f36b100fe8a5377810d56c3f4789b9c53ac42", 6),
    "EleutherAI/pythia-160m": ("50f5173d932e8e61f858120bcb800b97af589f46", 12),
    "EleutherAI/pythia-410m": ("9879c9b5f8bea9051dcb0e68dff21493d67e9d4f", 24),
    "EleutherAI/pythia-1.4b": ("fedc38a16eea3bd36a96b906d78d11d2ce18ed79", 24),
    "EleutherAI/pythia-2.8b": ("2a259cdd96a4beb1cdf467512e3904197345f6a9", 32),
    "EleutherAI/pythia-6.9b": ("c0e3eee36dc47af0c49f361c74cfe459c09f7f23", 32),
    "EleutherAI/pythia-12b": ("bb1e3e710cdf6b524461d543cfb5ba773f0a81b6", 36),
}
GPT_NEO = {
    "EleutherAI/gpt-neo-125m": ("21def0189f5705e2521767faed922f1f15e7d7db", 12),
    "EleutherAI/gpt-neo-1.3B": ("dbe59a7f4a88d01d1ba9798d78dbe3fe038792c8", 24),
    "EleutherAI/gpt-neo-2.7B": ("e24fa291132763e59f4a5422741b424fb5d59056", 32),
}
"""Repository: commit and number of blocks, which is the real one."""

SHARDED = "EleutherAI/pythia-2.8b"
PICKLE_ONLY = "mini/pickle-only"

DATASETS = {
    "allenai/ai2_arc": ("210d026faf9955653af8916fad021475a3f00453", miniatures.ai2_arc),
    "Rowan/hellaswag": ("218ec52e09a7e7462a5400043bb9a69a41d06b76", miniatures.hellaswag),
    "EleutherAI/lambada_openai": (
        "900124bf3b8235c6daf21033af9948b3f07346c4",
        miniatures.lambada_openai,
    ),
    "baber/piqa": ("142f6d7367fd9877f0fb3b5734ea6a545f54cdd1", miniatures.piqa),
    "EleutherAI/wikitext_document_level": (
        "647234772b9554e208af6c826f23b99e3cac88c8",
        miniatures.wikitext,
    ),
    "EleutherAI/pythia-memorized-evals": (
        "d97edd12f08884dae3dfcef8d5cbbba5129e49e0",
        miniatures.memorized_evals,
    ),
    "NeelNanda/pile-10k": ("127bfedcd5047750df5ccf3a12979a47bfa0bafa", miniatures.pile_10k),
}
"""Repository: commit and what builds its files."""

GPT_NEO_SAMPLES = (
    "/raw/ethz-privsec/lm-extraction-benchmark-data"
    "/5a3286942710076d56024cfdb296f7c585cd2b7c/datasets"
)
"""The path of the folder of the GPT-Neo samples, which are not on the hub."""


def populate(hub: Hub) -> None:
    """Add all repositories and the GPT-Neo samples.

    Args:
        hub: one that has none of them yet.
    """
    for name, (commit, blocks) in PYTHIA.items():
        hub.model(name).add(miniatures.pythia(blocks, sharded=name == SHARDED), commit)
    for name, (commit, blocks) in GPT_NEO.items():
        hub.model(name).add(miniatures.gpt_neo(blocks), commit)
    hub.model(PICKLE_ONLY).add(miniatures.pythia(2, pickle_only=True))
    for name, (commit, build) in DATASETS.items():
        hub.dataset(name).add(build(), commit)
    for name, data in miniatures.gpt_neo_samples().items():
        hub.files[f"{GPT_NEO_SAMPLES}/{name}"] = data
