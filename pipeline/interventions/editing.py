"""A stock model with edited blocks, for any use.

Shapes: L blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from pipeline.interventions.edits import RULES
from pipeline.interventions.guard import proven
from pipeline.interventions.hooks import BlockRows, hooked, require_editable
from pipeline.interventions.interventions import IDENTITY, Intervention
from pipeline.interventions.trie import build_trie
from pipeline.workflow.errors import InputError, Problem


@contextmanager
def bypassed(
    model: PreTrainedModel, what: Intervention | Iterable[int]
) -> Iterator[PreTrainedModel]:
    """Edit blocks of a model while the context lasts, for any use of the model.

    Args:
        model: a stock causal language model in evaluation mode.
        what: blocks (0-based) that get the identity, or an intervention without a mean.

    Yields:
        The same model. Its weights are not touched; afterwards, even after an exception, its
        results are bit for bit those from before.

    Raises:
        InputError: an unsupported model or edit, or a block that the model does not have.
    """
    known = proven(model)
    if not isinstance(what, Intervention):
        what = Intervention("bypassed", dict.fromkeys(what, IDENTITY))
    build_trie([what], len(known.sites))  # raises if a block does not exist
    if any(RULES[edit].needs_mean for edit in what.edits.values()):
        raise InputError(
            Problem(
                what=f"intervention {what.name}",
                got=f"the edit {what.edit}",
                expected="edits without a mean",
                remedy="use complete or score, which take tokens to calibrate on",
            )
        )
    require_editable(known, [what])
    edits = [what.at(block) for block in range(len(known.sites))]
    every = slice(None)
    with hooked(known, [BlockRows(edits={edit: every} if edit else {}) for edit in edits]):
        yield model
