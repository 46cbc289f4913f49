"""Validates a checkpoint's weights against its config.json, by name and shape.

transformers would draw missing weights at random, and ignore surplus ones. `where` is the
checkpoint's name in errors.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.hub import Snapshot

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
"""As transformers looks for them."""

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Name of a type in safetensors -> its name in torch."""

LIMITS = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "attention_types"), 1000),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 1 << 20),
    "head_dim": 1 << 16,
}
"""Limits of the sizes by which transformers loops, or for which it computes tables, while it builds
a model. Another absurd size takes nothing before it is found not to fit the weights."""

_MASKS = re.compile(r"\.att(entio)?n\.(masked_)?bias$")
"""Masks that old versions of transformers stored with the weights. It declares that it ignores them
for GPT-NeoX, but not for GPT-Neo, GPT-J, nor all of those of GPT-2."""


def skeleton(checkpoint: Snapshot, where: str) -> PreTrainedModel:
    """The model that a checkpoint's config.json describes, compared with its weights' headers.

    It is without its weights, on torch's meta device, in the precision of most of them.

    Raises:
        InputError: weights that are only pickles, incomplete, unreadable or quantized; a
            configuration with absurd sizes, or one that transformers cannot read without running
            the repository's code; or as for `require_fit`.
    """
    shapes, dtype = _stored(checkpoint, where)
    with checkpoint.alone() as folder, _explained(where):
        config, built = _built(folder, dtype, where)
        model: PreTrainedModel
        model, report = type(built).from_pretrained(
            None,
            config=config,
            state_dict={name: torch.empty(s, device="meta") for name, s in shapes.items()},
            device_map="meta",
            dtype=dtype,
            ignore_mismatched_sizes=True,  # and reported
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        require_fit(report, where)
    return model


def require_known(folder: Path, where: str) -> None:
    """Raise if config.json alone shows that the model cannot be built.

    Raises:
        InputError: as for `skeleton`.
    """
    with _explained(where):
        _built(folder, torch.float32, where)


def require_fit(report: Mapping[str, Any], where: str) -> None:
    """Raise if, by transformers' report, the weights are not those that the configuration requires.

    Raises:
        InputError: tensors are missing, left over or of another shape.
    """
    found = {
        "missing": sorted(report["missing_keys"]),
        "not used": sorted(name for name in report["unexpected_keys"] if not _MASKS.search(name)),
        "of another shape": [
            f"{name} {list(stored)}, not {list(wanted)}"
            for name, stored, wanted in sorted(report["mismatched_keys"])
        ],
    }
    problems = [
        Problem(
            f"{where}: weights",
            f"{len(names)} {how}: {shorten(names, 240)}",
            "exactly the tensors that config.json requires, as floating-point numbers",
            "name a whole checkpoint, or correct its config.json (the layers, tie_word_embeddings)",
        )
        for how, names in found.items()
        if names
    ]
    if problems:
        raise InputError(*problems)


def not_understood(where: str, error: Exception) -> InputError:
    """The error for a checkpoint that transformers cannot read, from its exception."""
    return bad_input(
        where,
        shorten(" ".join(str(error).split()) or type(error).__name__, 240),
        "a configuration and a tokenizer that transformers knows",
        "choose a model that needs no code of its own",
    )


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn any error into an InputError; suppress transformers' bar and report of it."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each of transformers' many parts raises its own
        raise not_understood(where, error) from error
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _built(folder: Path, dtype: torch.dtype, where: str) -> tuple[PreTrainedConfig, Any]:
    """The configuration, and its model without weights."""
    values = json.loads((folder / "config.json").read_text("utf-8"))
    repeats = sum(count for _, count in values.get("attention_types") or []) or None
    sizes = {**(values.get("text_config") or {}), **values, "attention_types": repeats}
    expected = {key: (f"1 to {most}", range(1, most + 1)) for key, most in LIMITS.items()}
    expected["quantization_config"] = ("weights that are not quantized", range(0))
    problems = [
        Problem(
            f"{where}: config.json: {key}",
            shorten(sizes[key]),
            wanted,
            "correct config.json, or name another checkpoint",
        )
        for key, (wanted, allowed) in expected.items()
        if sizes.get(key) is not None and sizes[key] not in allowed
    ]
    if problems:
        raise InputError(*problems)
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, trust_remote_code=False
        )
    _require_rotary(model, where)
    return config, model


def _require_rotary(model: PreTrainedModel, where: str) -> None:
    """Raise for a rotary embedding with more dimensions than a head has, or without angles."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    size = getattr(model.config, "head_dim", None) or (
        model.config.hidden_size // model.config.num_attention_heads
    )
    turned = [2 * len(each) for name, each in model.named_buffers() if name.endswith("inv_freq")]
    if any(each > size for each in turned) or not rope.get("rope_theta", 1) > 0:
        raise bad_input(
            f"{where}: config.json: rope_parameters",
            shorten(dict(rope)),
            f"rope_theta above 0, and a partial_rotary_factor of 0 to 1: heads have {size} "
            "dimensions",
            "correct config.json, or name another checkpoint",
        )


def _stored(checkpoint: Snapshot, where: str) -> tuple[dict[str, list[int]], torch.dtype]:
    """Tensor -> shape, and the precision of most of the numbers, from the headers of the files.

    Only tensors of floating-point numbers; masks and quantized weights have other types.
    """
    shapes: dict[str, list[int]] = {}
    numbers: Counter[str] = Counter()
    holders: dict[str, str] = {}
    for name, key, part in _tensors(checkpoint, where):
        if key in holders:
            _require_equal(checkpoint.folder, key, holders[key], name, where)
        holders[key] = name
        numbers[part.get_dtype()] += prod(part.get_shape())
        if part.get_dtype() in DTYPES:
            shapes[key] = part.get_shape()
    if not shapes:
        raise bad_input(
            where,
            "weights stored as " + (", ".join(numbers) or "nothing"),
            "one of " + ", ".join(DTYPES),
            "name a commit whose weights are not quantized",
        )
    return shapes, getattr(torch, DTYPES[max(DTYPES, key=numbers.__getitem__)])


def require_numbers(checkpoint: Snapshot, where: str) -> None:
    """Raise if a tensor of the weights holds NaN, which a model spreads to all that it returns.

    Raises:
        InputError: one does; the first is named.
    """
    for name, key, part in _tensors(checkpoint, where):
        if part.get_dtype() in DTYPES and (bad := int((values := part[...]).isnan().sum())):
            raise bad_input(
                f"{where}: {key} in {name}",
                f"NaN in {bad} of {values.numel()} numbers",
                "finite weights",
                "name a checkpoint from before its training failed",
            )


def _tensors(checkpoint: Snapshot, where: str) -> Iterator[tuple[str, str, Any]]:
    """File and name of each tensor of the weights, and a slice, whose numbers are read lazily."""
    for name in _weight_files(checkpoint, where):
        try:
            with safe_open(checkpoint.folder / name, framework="pt") as weights:
                for key in weights.keys():  # noqa: SIM118 - not a mapping
                    yield name, key, weights.get_slice(key)
        except (SafetensorError, OSError) as error:
            raise bad_input(
                f"{where}: {name}",
                shorten(str(error)),
                "a safetensors file",
                "name a commit whose weights can be read",
            ) from error


def _require_equal(folder: Path, key: str, one: str, other: str, where: str) -> None:
    """Raise if two files hold a tensor with different values, since either could be loaded."""
    values = []
    for name in (one, other):
        with safe_open(folder / name, framework="pt") as weights:
            values.append(weights.get_tensor(key))
    if values[0].dtype != values[1].dtype or not torch.equal(*values):
        raise bad_input(
            f"{where}: {key}",
            f"other values in {one} than in {other}",
            "each tensor once",
            "name a checkpoint whose files belong together",
        )


def _weight_files(checkpoint: Snapshot, where: str) -> list[str]:
    """The files that transformers loads: one of this name, or else those of the index."""
    if adapters := [name for name in checkpoint.files if Path(name).name.startswith("adapter_")]:
        raise bad_input(
            where,
            ", ".join(adapters),
            "weights that are whole without an adapter",
            "merge it into the weights (merge_and_unload of peft), or remove it",
        )
    names = checkpoint.weights
    listed = _listed(checkpoint.folder, where) if INDEX in checkpoint.files else set()
    if not listed <= set(names) or not (listed or WEIGHTS in names):
        raise bad_input(
            where,
            f"the safetensors {', '.join(names)}" if names else "no safetensors",
            ", ".join(sorted(listed))
            or f"{WEIGHTS}, or {INDEX} and what it names; a pickle is never loaded",
            "name a commit that has them; many repositories have one as a pull request "
            "(refs/pr/N), whose commit can be pinned",
        )
    if WEIGHTS in names and listed - {WEIGHTS}:
        raise bad_input(
            where,
            f"{WEIGHTS}, and beside it {INDEX} with {', '.join(sorted(listed))}",
            "one set of weights: transformers would load the single file without a check",
            "name a commit that has one of the two, or move the wrong one away",
        )
    return [WEIGHTS] if WEIGHTS in names else sorted(listed)


def _listed(folder: Path, where: str) -> set[str]:
    """The files that the index names."""
    try:
        listed = set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values())
        if not listed or not all(isinstance(name, str) for name in listed):
            raise ValueError(f"weight_map of {shorten(listed)}")
        return listed
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise bad_input(
            f"{where}: {INDEX}",
            shorten(f"{type(error).__name__}: {error}"),
            "the index of the weights: weight_map, a file for each of them",
            "name a commit whose weights can be read",
        ) from error
