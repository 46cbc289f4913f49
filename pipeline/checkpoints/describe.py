"""Describes a checkpoint without loading its weights."""

from __future__ import annotations

from transformers import AutoTokenizer, PreTrainedModel

from pipeline.checkpoints.fit import not_understood, skeleton
from pipeline.workflow.hub import Snapshot


def describe(checkpoint: Snapshot, where: str) -> tuple[PreTrainedModel, int]:
    """The model without its weights, and the number of tokens that its tokenizer knows.

    Args:
        checkpoint: files of a model, safetensors among them.
        where: its name in errors.

    Returns:
        The model, on torch's meta device, in the precision of its stored weights; and the tokens.

    Raises:
        InputError: as for `fit.skeleton`; a tokenizer that transformers cannot read without
            running code of the repository.
    """
    with checkpoint.alone() as folder:
        model = skeleton(folder, checkpoint.files, where)
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # each of transformers' many parts raises its own
            raise not_understood(where, error) from error
    return model, len(tokenizer)
