"""Scorers: functions that say which places of a model hold the memory of some rows.

A scorer gets a model, the rows that it memorized, rows that it never saw, and places; it gives each
place a number, higher where the memory is more likely. Those built in give several named ones.

Shapes: N rows, T tokens, I units of a matrix, O the width of the stream.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from operator import sub
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from pipeline.interventions.completion import complete
from pipeline.interventions.editing import bypassed
from pipeline.interventions.interventions import BASELINE, IDENTITY, Intervention
from pipeline.interventions.interventions import HEADS as HEAD_IDENTITY
from pipeline.measure.attribution import products
from pipeline.mitigations import pruning
from pipeline.mitigations.matrices import inputs_scaled, recorded
from pipeline.mitigations.rows import Rows, contrasted, log_probs, logits
from pipeline.models.grids import BLOCKS, GRIDS, HEAD, HEADS
from pipeline.models.modules import attached
from pipeline.models.places import Place, masks, units, weight_of, writers

Scores = Mapping[str, Sequence[float]]
"""Name of a quantity, empty if there is one alone -> a score a place."""
Scorer = Callable[[PreTrainedModel, Rows, Rows, Sequence[Place]], Sequence[float]]
"""A scorer of a user's own: of model, memorized rows, control rows and places."""

INTEGRATED = partial(pruning.integrated_gradients, count=20)
"""With more nodes than for MLPs alone: the path removes attention and MLPs together."""
INTERPOLATIONS = 5
"""Points between two texts, at which EAP-IG takes gradients."""


@dataclass(frozen=True)
class Subject:
    """What a scorer looks at, besides the model without the memory: its twin.

    The models are in evaluation mode. A user's own scorer does not get the twin.
    """

    model: PreTrainedModel
    memorized: Rows
    control: Rows
    places: Sequence[Place]
    twin: PreTrainedModel


def by_place(of: Subject, units_of: Sequence[Tensor]) -> Tensor:
    """(…, places) the sums over the units of each place, of (…, I) for each of `writers`."""
    sums = []
    for place in of.places:
        pairs = zip(units_of[2 * place.block :], units(of.model, place), strict=False)
        sums.append(sum((each[..., columns].sum(-1) for each, columns in pairs), torch.zeros(())))
    return torch.stack(sums, -1)


def of_units(of: Subject, *, measure: pruning.Score) -> Scores:
    """What units have for memorized rows, more than for control rows."""
    matrices = writers(of.model)
    more = contrasted(lambda rows: measure(of.model, rows, matrices, 0), of.memorized, of.control)
    return {"": by_place(of, more).tolist()}


def lost(
    of: Subject,
    change: Callable[[Place], AbstractContextManager[Any]],
    measure: Callable[[], Any],
    less: Callable[[Any, Any], Any] = sub,
) -> list[float]:
    """How much less a measure is while each place is changed."""
    before, found = measure(), list[float]()
    for place in of.places:
        with change(place):
            found.append(float(less(before, measure())))
    return found


def edited(of: Subject, *, edit: str) -> Scores:
    """What is lost under one edit of each place: recitations, and nats a token.

    Source: arXiv 2501.05078 for the identity.
    """
    listed = [BASELINE]
    for place in of.places:
        heads = (place.index,) if place.part == HEAD else None
        what = HEAD_IDENTITY if heads and edit == IDENTITY else edit
        listed.append(Intervention(place.name, {place.block: what}, heads=heads))
    means, recited = [], torch.zeros(0)
    for rows in (of.control, of.memorized):
        suffix = rows.tokens.shape[1] - rows.first
        made = complete(of.model, rows.tokens, suffix, listed, decode=False)
        right = (made.teacher_forced == rows.tokens[:, rows.first :]).all(-1).double().mean(-1)
        nats = made.log_prob.double().mean((1, 2))
        recited = right[0] - right[1:]
        means.append(nats[0] - nats[1:])
    return {
        "exact_match": recited.tolist(),
        "log_prob": means[1].tolist(),
        "log_prob_minus_control": (means[1] - means[0]).tolist(),
    }


@torch.no_grad()
def divergence(of: Subject) -> Scores:
    """How far the bypass of each block moves the distribution of the next token, in nats."""

    def next_token() -> Tensor:
        return logits(of.model, of.memorized)[:, 0].log_softmax(-1)

    def moved(before: Tensor, after: Tensor) -> Tensor:
        return (before.exp() * (before - after)).sum(-1).mean()

    return {"kl": lost(of, lambda place: bypassed(of.model, [place.block]), next_token, moved)}


@torch.no_grad()
def zero_out(of: Subject) -> Scores:
    """What the log probability loses without what a place writes, more than that of control rows.

    Source: arXiv 2311.09060, section 3.2 (zero-out).
    """

    def beyond_control() -> float:
        means = [log_probs(of.model, rows).mean() for rows in (of.memorized, of.control)]
        return float(means[0] - means[1])

    return {"": lost(of, lambda place: without(of.model, [place]), beyond_control)}


def without(model: PreTrainedModel, places: Sequence[Place]) -> AbstractContextManager[None]:
    """A context in which places write nothing but the biases of their block."""
    matrices = writers(model)
    gates = [torch.ones(weight_of(matrix).shape[1]) for matrix in matrices]
    for place in places:
        for at, columns in enumerate(units(model, place), 2 * place.block):
            gates[at][columns] = 0
    return inputs_scaled(matrices, gates)


@torch.no_grad()
def causal_tracing(of: Subject) -> Scores:
    """What the log probability loses when a place writes what it writes in the twin.

    Source: arXiv 2202.05262 (causal tracing), with a twin for the corrupted run.
    """
    own, other = writers(of.model), writers(of.twin)
    with recorded(other) as (read, _):
        logits(of.twin, of.memorized)

    def exchanged(at: int, columns: slice) -> RemovableHandle:
        mine, its = (weight_of(each[at])[:, columns] for each in (own, other))
        theirs = nn.functional.linear(read[at][..., columns], its)
        biases = [getattr(each[at], "bias", None) for each in (own, other)]
        all_units = columns == slice(weight_of(own[at]).shape[1])  # such a place has the bias
        bias = biases[1] - biases[0] if all_units and biases[0] is not None else 0

        def put(_module: nn.Module, args: tuple[Tensor], returned: Tensor) -> Tensor:
            return returned - nn.functional.linear(args[0][..., columns], mine) + theirs + bias

        return own[at].register_forward_hook(put)

    def twins(place: Place) -> AbstractContextManager[None]:
        both = enumerate(units(of.model, place), 2 * place.block)
        return attached([exchanged(at, columns) for at, columns in both])

    return {"": lost(of, twins, lambda: log_probs(of.model, of.memorized).mean())}


def gradient_norm(of: Subject) -> Scores:
    """The norm of the loss's gradient by the weights of a place, more than that of control rows.

    Source: arXiv 2403.19851 (parameter gradients, memorized against not).
    """
    named = dict(of.model.named_parameters())
    own, norms = [masks(of.model, [place]).items() for place in of.places], []
    for rows in (of.memorized, of.control):
        loss = -log_probs(of.model, rows).mean()
        found = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        parts = [torch.cat([found[key][mask] for key, mask in each]) for each in own]
        norms.append([float(part.norm()) for part in parts])
    return {"": [a - b for a, b in zip(*norms, strict=True)]}


def gradient_times_output(of: Subject) -> Scores:
    """Gradient times activation, of what the parts of a block write."""
    rows = of.memorized
    found = products(of.model, rows.tokens, rows.tokens.shape[1] - rows.first)
    means = found.abs().mean((0, 3)).double()[[place.block for place in of.places]]
    attention, mlp = means.unbind(-1)
    values = {"attention": attention, "mlp": mlp, "sum": attention + mlp}
    return {name: value.tolist() for name, value in values.items()}


def attribution(of: Subject, *, points: int) -> Scores:
    """The change of the suffix's log probability if a place wrote what it writes for control rows.

    Of first order, from the gradient at the memorized row, or at `points` between both rows'
    embeddings. The mean over rows of the absolute value.

    Source: Nanda, attribution patching (2023); with several points arXiv 2403.17806 (EAP-IG), whose
    edges from one place to all others sum to this.
    """
    matrices, rows = writers(of.model), of.memorized
    chosen = torch.arange(len(rows)) % len(of.control)
    embed = of.model.get_input_embeddings()
    with torch.no_grad():
        states = [embed(tokens) for tokens in (of.control.tokens[chosen], rows.tokens)]
        inputs = []
        for each in states:
            with recorded(matrices) as (read, _):
                of.model(inputs_embeds=each, use_cache=False)
            inputs.append(read)
    sums = [torch.zeros(())] * len(matrices)
    for number in range(1, points + 1):
        at = torch.lerp(states[0], states[1], number / points).requires_grad_()
        with recorded(matrices) as (_, gradients):
            made = of.model(inputs_embeds=at, use_cache=False).logits[:, rows.first - 1 : -1]
            right = rows.tokens[:, rows.first :, None]
            torch.autograd.grad(made.log_softmax(-1).gather(-1, right).sum(), at)
        sums = [old + new for old, new in zip(sums, gradients, strict=True)]
    effects = [
        ((gradient @ weight_of(m).detach()) * (control - memorized)).sum(1) / points
        for m, gradient, control, memorized in zip(matrices, sums, *inputs, strict=True)
    ]
    return {"": by_place(of, effects).abs().mean(0).tolist()}


SCORERS: dict[str, tuple[Callable[[Subject], Scores], Sequence[str]]] = {
    "identity": (partial(edited, edit="identity"), (BLOCKS, HEADS)),
    "zero": (partial(edited, edit="zero"), (BLOCKS, HEADS)),
    "mlp-zero": (partial(edited, edit="mlp-zero"), (BLOCKS,)),
    "skip": (partial(edited, edit="skip"), (BLOCKS,)),
    "divergence": (divergence, (BLOCKS,)),
    "gradient": (gradient_times_output, (BLOCKS,)),
    "gradient-norm": (gradient_norm, GRIDS),
    "zero-out": (zero_out, GRIDS),
    "activations": (partial(of_units, measure=pruning.activity), GRIDS),
    "integrated-gradients": (partial(of_units, measure=INTEGRATED), GRIDS),
    "slimming": (partial(of_units, measure=pruning.slimmed), GRIDS),
    "hard-concrete": (partial(of_units, measure=pruning.hard_concrete), GRIDS),
    "attribution-patching": (partial(attribution, points=1), GRIDS),
    "eap-ig": (partial(attribution, points=INTERPOLATIONS), GRIDS),
    "causal-tracing": (causal_tracing, GRIDS),
}
"""Name -> scorers, and the places that they are for.

In the tables the name is followed by a dot and the quantity, where there are several.
"""
