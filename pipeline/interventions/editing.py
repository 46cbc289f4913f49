"""A stock model with edited blocks, for any use.

Shapes: L blocks.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from pipeline.interventions.edits import MEAN, rules_of
from pipeline.interventions.evaluation import lock_of
from pipeline.interventions.guard import prepare
from pipeline.interventions.hooks import BlockRows, hooked
from pipeline.interventions.interventions import Intervention, bypass
from pipeline.workflow.errors import bad_input


@contextmanager
def bypassed(
    model: PreTrainedModel, what: Intervention | Iterable[int]
) -> Iterator[PreTrainedModel]:
    """Edit blocks of a model while the context lasts, for any use of the model.

    Other threads that evaluate or edit the model wait for the end of the context.

    Args:
        model: a stock causal language model in evaluation mode.
        what: blocks (0-based) that get the identity, or an intervention without a mean.

    Yields:
        The same model. Its weights are not touched; afterwards, even after an exception, its
        results are bit for bit those from before.

    Raises:
        InputError: an unsupported model or edit, or a block that the model does not have.
    """
    if not isinstance(what, Intervention):
        what = bypass("bypassed", what)
    if what.positions or any(MEAN in rule.needs or rule.source for rule in rules_of([what])):
        raise bad_input(
            what=f"intervention {what.name}",
            got=f"the edit {what.edit}",
            expected="edits of all positions, without a mean or the values of another text",
            remedy="use complete or score, which know the prefix and take tokens to calibrate on",
        )
    with lock_of(model):
        known = prepare(model, [what]).known
        rows = [BlockRows() for _ in known.sites]
        for block, edit in what.placed:
            rows[block].edits[edit] = slice(None)
        with hooked(known, rows, fast=False):
            yield model
