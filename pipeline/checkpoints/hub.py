"""Fetches the checkpoint of a published model; the weights stay in the Hugging Face cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from pipeline.checkpoints.fit import require_known
from pipeline.checkpoints.folder import describe, write_description
from pipeline.checkpoints.manifest import Manifest
from pipeline.checkpoints.verified import tokenizer_of
from pipeline.workflow.errors import bad_input
from pipeline.workflow.hub import (
    CHECKPOINT_FILES,
    TOKENIZER_FILES,
    WEIGHTS,
    Snapshot,
    commit_of,
    listing,
    missing_bytes,
    select,
    snapshot,
)
from pipeline.workflow.network import online

if TYPE_CHECKING:  # samples, which need a tokenizer alone, do not depend on it
    from pipeline.checkpoints.schema import Hub, Model

FINAL = "main"
"""The branch of a repository that holds the final model of a training run."""


def fetch_checkpoint(folder: Path, model: Model, source: Hub) -> Manifest:
    """Fetch a checkpoint into the Hugging Face cache, and write its manifest, atomically.

    Raises:
        InputError: as for `fetch_files`, `write_description` and `require_own_weights`.
    """
    repo, commit = source.pin
    cached = not missing_bytes(select(listing(repo, commit), CHECKPOINT_FILES), repo, commit)
    if model.step is not None and (online() or not cached):  # weights were compared when fetched
        require_own_weights(repo, commit, model.step)
    checkpoint, where = fetch_files(repo, commit), f"{repo} at {commit}"
    described, origin = describe(checkpoint, where), {"repo": repo, "commit": commit}
    return write_description(folder, checkpoint, described, where, model, origin)


def require_own_weights(repo: str, commit: str, step: int) -> None:
    """Raise if a step of a training run carries weights of the final model.

    Every step of Pythia 2.8b has the final ``model.safetensors`` beside its own shards. The last
    step is the final model; its commit is that of `FINAL`.

    Raises:
        InputError: a file of weights is the same in `FINAL`, at another commit; or as for
            `pipeline.workflow.hub.commit_of` and `listing`.
    """
    final = commit_of(repo, FINAL)
    own, others = (
        {(file.path, file.lfs.sha256 if file.lfs else file.blob_id) for file in files}
        for files in (select(listing(repo, each), WEIGHTS) for each in (commit, final))
    )
    if own & others and commit != final:
        path, checksum = min(own & others)
        raise bad_input(
            f"{repo} at {commit}, step {step}",
            f"{path} with checksum {checksum}, the same as in {FINAL}, which is {final}",
            "weights of this step, other than those of the final model",
            f"for the last step, name the commit of {FINAL}; for another, make a folder with "
            "the right files, and use source: folder",
        )


def fetch_files(repo: str, commit: str) -> Snapshot:
    """Fetch the files of a checkpoint, the configuration first, so that a model that cannot be
    evaluated is rejected before its gigabytes are fetched.

    Raises:
        InputError: as for `pipeline.workflow.hub.snapshot` and `fit.require_known`.
    """
    with snapshot(repo, commit, TOKENIZER_FILES).alone() as small:
        require_known(small, f"{repo} at {commit}")
    return snapshot(repo, commit, CHECKPOINT_FILES)


def fetched_tokenizer(repo: str, commit: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a published model; its weights are not fetched.

    Raises:
        InputError: as for `pipeline.workflow.hub.snapshot` and `verified.tokenizer_of`.
    """
    return tokenizer_of(snapshot(repo, commit, TOKENIZER_FILES), f"{repo} at {commit}")
