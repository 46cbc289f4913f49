"""Loads a checkpoint: only safetensors, never pickles, and only files in its manifest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from pipeline.checkpoints.fit import require_fit, skeleton
from pipeline.checkpoints.verified import tokenizer_of, verified
from pipeline.workflow.hub import Snapshot


def load_model(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu"
) -> PreTrainedModel:
    """The model of a checkpoint, in eval mode.

    Args:
        folder: of the checkpoint's manifest. Weights of the hub that are not in the cache are
            fetched, at the commit that the manifest names.
        dtype: to which the stored weights are converted, or its name, such as ``float32``.
        device: the device of the model, such as ``cuda``.

    Raises:
        InputError: the manifest is missing, a file is missing or differs from the manifest, or the
            weights are not those of the configuration.
    """
    return model_of(verified(Path(folder)), dtype, device)


def load(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; computes the slow checksums of a large checkpoint only once.

    Args:
        folder: as for `load_model`, and so are the others.
        dtype: likewise.
        device: likewise.

    Raises:
        InputError: as for `load_model`.
    """
    files = verified(Path(folder))
    return model_of(files, dtype, device), tokenizer_of(files)


def model_of(
    checkpoint: Snapshot, dtype: torch.dtype | str, device: str = "cpu"
) -> PreTrainedModel:
    """The model among the files of a checkpoint, in eval mode.

    Args:
        checkpoint: its files, as they were found or fetched.
        dtype: as for `load_model`; ``auto`` as the weights are stored.
        device: likewise.

    Raises:
        InputError: the weights are not those of the configuration.
    """
    where = str(checkpoint.folder)
    if not sys.stderr.isatty():  # a bar would fill the log
        disable_progress_bar()  # type: ignore[no-untyped-call]
    model: PreTrainedModel
    report: dict[str, Any]
    with checkpoint.alone() as folder:
        skeleton(folder, checkpoint.files, where)  # rejects it before gigabytes are read
        model, report = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            folder,
            dtype=dtype,
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,  # never prompts
        )
    require_fit(report, where)
    model.to(device).eval()  # type: ignore[arg-type]
    return model
