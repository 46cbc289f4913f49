"""Audits of whole documents: what `audit --document` adds to the study of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checkpoints.folder import checkpoint_files, describe, require_tokenizer
from pipeline.samples.texts import files, texts
from pipeline.study.audit import Asked, _link, origin_of
from pipeline.workflow.errors import bad_input

REFERENCE = "reference"
"""The name of the reference model, of its family, and of the link to a reference text."""

DOCUMENTS, CORPUS = "documents", "corpus"
"""The links to the documents, and to the corpus, in an audit's folder."""


@dataclass(frozen=True)
class Read:
    """The documents that the command line asks for.

    Args:
        path: a text file, or a folder of them.
        stride: tokens from one window to the next.
        edits: names of interventions under which the documents are read, beside the baseline.
        reference: another model, or a text that the model cannot know; None: neither.
        corpus: a text file, or a folder of them, in which copies are counted; None: none is.
    """

    path: Path
    stride: int
    edits: Sequence[str]
    reference: str | None
    corpus: Path | None = None

    @property
    def reference_text(self) -> Path | None:
        """The reference, if it is a file."""
        named = self.reference is not None and Path(self.reference).is_file()
        return Path(str(self.reference)) if named else None

    def longest(self) -> Path:
        """The longest document, once all texts were read: the study of the audit has its samples.

        Raises:
            InputError: there is no document; or one, or a text of reference or corpus, that is no
                plain text in UTF-8.
        """
        for other in filter(None, (self.corpus, self.reference_text)):
            texts(other)
        found = texts(self.path)
        return files(self.path)[max(found, key=lambda name: len(found[name]))]


def added(values: dict[str, Any], asked: Asked, read: Read) -> dict[str, Any]:
    """The study of an audit with the sections that its documents need; writes nothing.

    Args:
        values: the study, as `audit.study` gives it.
        asked: the audit.
        read: its documents.

    Raises:
        InputError: the audit has the name of the reference, or the reference is neither a file, a
            folder nor a commit, or no model that can be evaluated.
    """
    if asked.name == REFERENCE:
        raise bad_input("--name", REFERENCE, "another name", "the reference model has this one")
    text = read.reference_text
    lengths = {"prefix_length": asked.prefix_length, "suffix_length": asked.suffix_length}
    values = {
        **values,
        "windows": {
            "documents": DOCUMENTS,
            "reference_text": REFERENCE if text else None,
            "reference": REFERENCE if read.reference and not text else None,
            "corpus": CORPUS if read.corpus else None,
            **lengths,
            "stride": read.stride,
            "interventions": list(read.edits),
        },
    }
    if text or not read.reference:
        return values
    from pipeline.checkpoints.hub import fetch_files  # imports torch, which takes seconds

    origin = origin_of(read.reference, "a text file, ")
    own = Path(read.reference)
    kept = checkpoint_files(own) if own.is_dir() else fetch_files(origin["repo"], origin["commit"])
    model, _ = describe(kept, read.reference)
    require_tokenizer(kept.files, read.reference)
    source = {"source": "folder", "path": REFERENCE} if own.is_dir() else origin
    checkpoint = {"source": "hub", **source, "billions": model.num_parameters() / 1e9}
    of_model, key = next(iter(values["families"].values())), f"{asked.study}-{REFERENCE}"
    samples = {**of_model["samples"], "tokenizer": REFERENCE, "skip_short": True}
    family = {"name": REFERENCE, **lengths, "samples": samples}
    evaluation = next(iter(values["evaluation"].values()))
    entry = {"name": REFERENCE, "family": REFERENCE, "checkpoint": checkpoint}
    return {
        **values,
        "families": {**values["families"], f"{key}-samples": family},
        "models": {**values["models"], key: entry},
        "evaluation": {**values["evaluation"], REFERENCE: evaluation},
    }


def prepare(asked: Asked, read: Read) -> None:
    """Link the documents, the corpus, and a reference on this machine into the audit's folder.

    Args:
        asked: the audit, whose folder `audit.prepare` made.
        read: its documents.
    """
    _link(asked.folder / DOCUMENTS, read.path.absolute())
    if read.corpus:
        _link(asked.folder / CORPUS, read.corpus.absolute())
    if read.reference and Path(read.reference).exists():
        _link(asked.folder / REFERENCE, Path(read.reference).absolute())
