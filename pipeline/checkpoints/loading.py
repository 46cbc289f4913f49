"""Loads a checkpoint: only safetensors, never pickles, and only files in its manifest."""

import sys
import weakref
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from pipeline.checkpoints.fit import require_fit, skeleton
from pipeline.checkpoints.placement import placement, release_at_once
from pipeline.checkpoints.verified import tokenizer_of, verified
from pipeline.workflow.hub import Snapshot


def load_model(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu", room: int | None = None
) -> PreTrainedModel:
    """The model of a checkpoint, in eval mode, from the folder of its manifest.

    Weights of the hub that are not in the cache are fetched, at the commit that the manifest names.
    They are converted to `dtype`, which may be a name, such as ``float32``. `room` are the bytes
    that they may take on the device, beyond which blocks are streamed; None: no limit.

    Raises:
        InputError: the manifest is missing, a file is missing or differs from the manifest, or the
            weights are not those of the configuration.
    """
    return model_of(verified(Path(folder)), dtype, device, room)


def load(
    folder: str | Path, dtype: torch.dtype | str, device: str = "cpu", room: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; computes the slow checksums of a large checkpoint only once.

    Raises:
        InputError: as for `load_model`.
    """
    files = verified(Path(folder))
    return model_of(files, dtype, device, room), tokenizer_of(files)


def model_of(
    checkpoint: Snapshot,
    dtype: torch.dtype | str,
    device: str = "cpu",
    room: int | None = None,
) -> PreTrainedModel:
    """The model among the files of a checkpoint, in eval mode, as `load_model` loads it.

    The dtype ``auto`` is that of the stored weights.

    Raises:
        InputError: the weights are not those of the configuration.
    """
    where = str(checkpoint.folder)
    if not sys.stderr.isatty():  # a bar would fill the log
        disable_progress_bar()  # type: ignore[no-untyped-call]
    model: PreTrainedModel
    report: dict[str, Any]
    with ExitStack() as stack:
        folder = stack.enter_context(checkpoint.alone())
        # rejects it before gigabytes are read
        bare = skeleton(checkpoint, where)
        places, streaming = dict[str, str](), dict[str, Any]()
        if room is not None:  # `auto` is no name of torch's
            kind = getattr(torch, dtype, bare.dtype) if isinstance(dtype, str) else dtype
            places = placement(bare, kind, device, room)
        if places:
            # transformers writes weights there whose names it changes
            converted = stack.enter_context(TemporaryDirectory(prefix="converted-"))
            streaming = {"device_map": places, "offload_folder": converted}
        model, report = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            folder,
            dtype=dtype,
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,  # never prompts
            **streaming,
        )
        require_fit(report, where)
        if places:
            release_at_once()
            weakref.finalize(model, stack.pop_all().close)  # its files are read in every pass
        else:
            model.to(device)  # type: ignore[arg-type]
    model.eval()  # type: ignore[no-untyped-call]
    return model
