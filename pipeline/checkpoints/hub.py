"""Fetch the checkpoint of a published model, and describe it without loading its weights.

The weights stay in the Hugging Face cache; what the stage keeps is a manifest that pins every file.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from pipeline.checkpoints.manifest import Manifest, write_manifest
from pipeline.errors import InputError, Problem, shorten
from pipeline.files import atomic
from pipeline.hub import Snapshot, snapshot

FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""What is fetched of a repository. No pickles, no code, no weights of other frameworks."""

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""As safetensors writes them -> as torch calls them."""

SIZE_TOLERANCE = 0.1
"""How far the parameters may be from the size that the study gives; it rounds, and may count
embeddings otherwise."""


def fetch(
    folder: Path, repo: str, commit: str, *, name: str, family: str, billions: float | None
) -> Manifest:
    """Fetch a checkpoint into the Hugging Face cache, and write its manifest, atomically.

    Args:
        folder: gets the manifest, and nothing else.
        repo: OWNER/NAME.
        commit: 40 hexadecimal digits.
        name: of the model, as the study calls it.
        family: of the model, as the study calls it.
        billions: of parameters, as the study says; None where nobody said.

    Raises:
        InputError: what `pipeline.hub.snapshot` raises; weights that are pickles only, incomplete
            or unreadable; a configuration or tokenizer that transformers cannot read without
            running code of the repository; another size than the study says.
    """
    got = snapshot(repo, commit, FILES)
    where = f"{repo} at {commit}"
    model, tokens = describe(got, where)
    parameters = model.num_parameters()
    if billions is not None and abs(parameters / 1e9 - billions) > SIZE_TOLERANCE * billions:
        raise InputError(
            Problem(
                f"the size of {where}",
                f"{parameters / 1e9:.4g} billion parameters",
                f"{billions:g}, as the study says of {name}",
                "name the right repository, or correct `billions` of this model",
            )
        )
    with atomic(folder, directory=True) as temporary:
        return write_manifest(
            temporary,
            model,
            name=name,
            family=family,
            tokens=tokens,
            seed=None,
            origin={"repo": repo, "commit": commit},
            files=got.files,
        )


def describe(checkpoint: Snapshot, where: str) -> tuple[Any, int]:
    """The model without its weights, and the number of tokens that its tokenizer knows.

    Args:
        checkpoint: files of a model, safetensors among them.
        where: what to call it in an error.

    Returns:
        The model, on torch's meta device, in the precision of its stored weights; and the tokens.

    Raises:
        InputError: as for `fetch`.
    """
    dtype = _stored_dtype(checkpoint, where)
    try:
        config = AutoConfig.from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=False
        )
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=getattr(torch, dtype), trust_remote_code=False
            )
    except Exception as error:  # each of transformers' many parts raises its own
        raise InputError(
            Problem(
                where,
                shorten(str(error).splitlines()[0] if str(error) else type(error).__name__),
                "a configuration and a tokenizer that transformers knows",
                "choose a model that needs no code of its own",
            )
        ) from error
    return model, len(tokenizer)


def _stored_dtype(checkpoint: Snapshot, where: str) -> str:
    """The precision of most of the stored numbers, read from the headers of the weights' files."""
    names = [name for name in checkpoint.files if name.endswith(".safetensors")]
    _require_whole(checkpoint, names, where)
    numbers: Counter[str] = Counter()
    for name in names:
        try:
            with safe_open(checkpoint.folder / name, framework="pt") as weights:
                for key in weights.keys():  # noqa: SIM118 - not a mapping
                    part = weights.get_slice(key)
                    count = 1
                    for length in part.get_shape():
                        count *= length
                    numbers[part.get_dtype()] += count
        except (SafetensorError, OSError) as error:
            raise InputError(
                Problem(
                    f"{where}: {name}",
                    shorten(str(error)),
                    "a safetensors file",
                    "name a commit whose weights can be read",
                )
            ) from error
    # masks that old versions of transformers stored as well are of other types
    weights_alone = {dtype: count for dtype, count in numbers.items() if dtype in DTYPES}
    if not weights_alone:
        raise InputError(
            Problem(
                where,
                "weights stored as " + (", ".join(numbers) or "nothing"),
                "one of " + ", ".join(DTYPES),
                "name a commit whose weights are not quantized",
            )
        )
    return DTYPES[max(weights_alone, key=weights_alone.__getitem__)]


def _require_whole(checkpoint: Snapshot, names: list[str], where: str) -> None:
    listed: set[str] = set()
    for name in checkpoint.files:
        if name.endswith(".safetensors.index.json"):
            try:
                index = json.loads((checkpoint.folder / name).read_text("utf-8"))
                listed |= set(index["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    Problem(
                        f"{where}: {name}",
                        shorten(f"{type(error).__name__}: {error}"),
                        "the index of the weights: weight_map, a file for each of them",
                        "name a commit whose weights can be read",
                    )
                ) from error
    if not names or not listed <= set(names):
        raise InputError(
            Problem(
                where,
                "the safetensors " + (", ".join(names) or "none"),
                ", ".join(sorted(listed)) or "weights as safetensors; a pickle is never loaded",
                "name a commit that has them; many repositories have one as a pull request "
                "(refs/pr/N), whose commit can be pinned",
            )
        )
