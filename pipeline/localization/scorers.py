"""Scorers: functions that say which places of a model hold the memory of some rows.

A scorer gets a model, the rows that it memorized, rows that it never saw, and places; it gives each
place a number, higher where the memory is more likely. Those built in give several named ones.

Shapes: N rows, T tokens, I units of a matrix, O the width of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.interventions.completion import complete
from pipeline.interventions.editing import bypassed
from pipeline.interventions.interventions import BASELINE, IDENTITY, Intervention
from pipeline.interventions.interventions import HEADS as HEAD_IDENTITY
from pipeline.measure.attribution import products
from pipeline.mitigations.descent import descend
from pipeline.mitigations.matrices import Matrix, inputs_scaled, recorded
from pipeline.mitigations.neurons import (
    MASK_ROWS,
    MASK_STEPS,
    SPARSITY,
    activity,
    integrated_gradients,
    slimmed,
)
from pipeline.mitigations.rows import Rows, contrasted, log_probs, logits
from pipeline.models.grids import BLOCKS, GROUPS, HEAD, HEADS
from pipeline.models.modules import attached
from pipeline.models.places import Place, masks, units, writers

Scores = Mapping[str, Sequence[float]]
"""Name of a quantity, empty if there is one alone -> a score a place."""
Scorer = Callable[[PreTrainedModel, Rows, Rows, Sequence[Place]], Sequence[float]]
"""A scorer of a user's own: of model, memorized rows, control rows and places."""

NODES = 20
"""Of the rule that integrates gradients; the path removes attention and MLPs together."""
INTERPOLATIONS = 5
"""Points between two texts, at which EAP-IG takes gradients."""
SHARPNESS, LOW, HIGH = 2 / 3, -0.1, 1.1
"""Of the Hard Concrete distribution: its temperature, and its ends before it is cut to [0, 1]."""
OPEN, GATE_RATE = 2.0, 0.1
"""Of its gates: where they start (log odds), and the learning rate (AdamW without decay)."""


@dataclass(frozen=True)
class Subject:
    """What a scorer looks at.

    Args:
        model: in evaluation mode.
        memorized: rows that the model memorized; their suffix is scored.
        control: rows that it never saw.
        places: that are scored.
        twin: the model without the memory; a user's own scorer does not get it.
    """

    model: PreTrainedModel
    memorized: Rows
    control: Rows
    places: Sequence[Place]
    twin: PreTrainedModel


def written(model: PreTrainedModel) -> list[Matrix]:
    """The matrices that write to the stream, attention's and the MLP's of each block in turn."""
    names = {module: name for name, module in model.named_modules()}
    return [Matrix(names[m], m) for pair in writers(model) for m in pair]


def by_place(of: Subject, units_of: Sequence[Tensor]) -> Tensor:
    """(…, places) the sums over the units of each place.

    Args:
        of: has the places.
        units_of: (…, I) for each of `written`.
    """
    sums = []
    for place in of.places:
        pairs = zip(units_of[2 * place.block :], units(of.model, place), strict=False)
        sums.append(sum((each[..., columns].sum(-1) for each, columns in pairs), torch.zeros(())))
    return torch.stack(sums, -1)


def _more(of: Subject, measure: Callable[[Rows], list[Tensor]]) -> Scores:
    """What units have for memorized rows, more than for control rows."""
    return {"": by_place(of, contrasted(measure, of.memorized, of.control)).tolist()}


# --------------------------------------------------------------------------- edits


def edited(of: Subject, *, edit: str) -> Scores:
    """What is lost under one edit of each place: recitations, and nats a token.

    Source: arXiv 2501.05078 for the identity.
    """
    listed = [BASELINE]
    for place in of.places:
        heads = (place.index,) if place.part == HEAD else None
        what = HEAD_IDENTITY if heads and edit == IDENTITY else edit
        listed.append(Intervention(place.name, {place.block: what}, heads=heads))
    lost, recited = [], torch.zeros(0)
    for rows in (of.control, of.memorized):
        suffix = rows.tokens.shape[1] - rows.first
        made = complete(of.model, rows.tokens, suffix, listed, decode=False)
        right = (made.teacher_forced == rows.tokens[:, rows.first :]).all(-1).double().mean(-1)
        means = made.log_prob.double().mean((1, 2))
        recited = right[0] - right[1:]
        lost.append(means[0] - means[1:])
    return {
        "exact_match": recited.tolist(),
        "log_prob": lost[1].tolist(),
        "log_prob_minus_control": (lost[1] - lost[0]).tolist(),
    }


@torch.no_grad()
def divergence(of: Subject) -> Scores:
    """How far the bypass of each block moves the distribution of the next token, in nats."""

    def next_token(model: PreTrainedModel) -> Tensor:
        return logits(model, of.memorized)[:, 0].log_softmax(-1)

    before, found = next_token(of.model), []
    for place in of.places:
        with bypassed(of.model, [place.block]) as model:
            after = next_token(model)
        found.append(float((before.exp() * (before - after)).sum(-1).mean()))
    return {"kl": found}


@torch.no_grad()
def zero_out(of: Subject) -> Scores:
    """What the log probability loses without what a place writes, more than that of control rows.

    Source: arXiv 2311.09060, section 3.2 (zero-out).
    """
    means = []
    for place in (None, *of.places):
        with nullcontext() if place is None else without(of.model, [place]):
            both = [log_probs(of.model, rows).mean() for rows in (of.memorized, of.control)]
        means.append(float(both[0] - both[1]))
    return {"": [means[0] - mean for mean in means[1:]]}


def without(model: PreTrainedModel, places: Sequence[Place]) -> AbstractContextManager[None]:
    """A context in which places write nothing but the biases of their block."""
    matrices = written(model)
    gates = [torch.ones(matrix.weight.shape[1]) for matrix in matrices]
    for place in places:
        for offset, columns in enumerate(units(model, place)):
            gates[2 * place.block + offset][columns] = 0
    return inputs_scaled(matrices, gates)


@torch.no_grad()
def causal_tracing(of: Subject) -> Scores:
    """What the log probability loses when a place writes what it writes in the twin.

    Source: arXiv 2202.05262 (causal tracing), with a twin for the corrupted run.
    """
    own, other = written(of.model), written(of.twin)
    with recorded(other) as (read, _):
        logits(of.twin, of.memorized)
    start, found = log_probs(of.model, of.memorized).mean(), []
    for place in of.places:
        hooks, both = [], units(of.model, place)
        for offset, columns in enumerate(both):
            at = 2 * place.block + offset
            theirs = nn.functional.linear(read[at][..., columns], other[at].weight[:, columns])
            biases = [getattr(m.module, "bias", None) for m in (own[at], other[at])]
            bias = None  # it belongs to a place that has all units
            if columns == slice(own[at].weight.shape[1]) and biases[0] is not None:
                bias = biases[1] - biases[0]

            def put(
                _module: nn.Module,
                args: tuple[Tensor],
                returned: Tensor,
                mine: Tensor = own[at].weight[:, columns],
                columns: slice = columns,
                theirs: Tensor = theirs,
                bias: Tensor | None = bias,
            ) -> Tensor:
                now = nn.functional.linear(args[0][..., columns], mine)
                return returned - now + theirs + (0 if bias is None else bias)

            hooks.append(own[at].module.register_forward_hook(put))
        with attached(hooks):
            found.append(float(start - log_probs(of.model, of.memorized).mean()))
    return {"": found}


# --------------------------------------------------------------------------- gradients


def gradient_norm(of: Subject) -> Scores:
    """The norm of the loss's gradient by the weights of a place, more than that of control rows.

    Source: arXiv 2403.19851 (parameter gradients, memorized against not).
    """
    named = dict(of.model.named_parameters())
    norms = []
    for rows in (of.memorized, of.control):
        loss = -log_probs(of.model, rows).mean()
        found = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        norms.append(
            [
                torch.cat([found[key][mask] for key, mask in masks(of.model, [place]).items()])
                .norm()
                .item()
                for place in of.places
            ]
        )
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
    matrices, rows = written(of.model), of.memorized
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
        ((gradient @ m.weight.detach()) * (control - memorized)).sum(1) / points
        for m, gradient, control, memorized in zip(matrices, sums, *inputs, strict=True)
    ]
    return {"": by_place(of, effects).abs().mean(0).tolist()}


# --------------------------------------------------------------------------- units


def activations(of: Subject) -> Scores:
    """How strongly units write for memorized rows, more than for control rows.

    Source: arXiv 2311.09060, section 3.2 (activations).
    """
    return _more(of, lambda rows: activity(of.model, rows, written(of.model)))


def integrated(of: Subject) -> Scores:
    """Integrated gradients of the log probability, by gates on all units together.

    Source: arXiv 2104.08696 (knowledge neurons), all units scaled together.
    """
    return _more(of, lambda rows: integrated_gradients(of.model, rows, written(of.model), NODES))


def slimming(of: Subject) -> Scores:
    """A sparse mask of the units that memorized rows need, and control rows do not.

    Source: arXiv 2311.09060, section 3.2 (Slimming).
    """
    return _more(of, lambda rows: slimmed(of.model, rows, 0, written(of.model)))


def concrete(of: Subject) -> Scores:
    """The same with Hard Concrete gates, whose expected number is what the loss pays for.

    Source: arXiv 1712.01312, in arXiv 2311.09060, section 3.2 (Hard Concrete).
    """
    return _more(of, lambda rows: hard_concrete(of.model, rows, 0, written(of.model)))


def hard_concrete(
    model: PreTrainedModel, rows: Rows, seed: int, matrices: Sequence[Matrix]
) -> list[Tensor]:
    """(I,) for each matrix: Hard Concrete gates, without noise, after training.

    Args:
        model: in evaluation mode.
        rows: whose loss the gates are to keep low.
        seed: of the noise and the rows.
        matrices: whose inputs get gates.
    """
    odds = [torch.full((m.weight.shape[1],), OPEN, requires_grad=True) for m in matrices]
    generator = torch.Generator().manual_seed(seed)
    shift = SHARPNESS * torch.log(torch.tensor(-LOW / HIGH))

    def gate(odd: Tensor) -> Tensor:
        return (odd.sigmoid() * (HIGH - LOW) + LOW).clamp(0, 1)

    def loss() -> Tensor:
        part = rows[rows.draw(MASK_ROWS, generator)]
        drawn = [torch.rand(odd.shape, generator=generator).clamp(1e-6, 1 - 1e-6) for odd in odds]
        gates = [gate((u.logit() + odd) / SHARPNESS) for u, odd in zip(drawn, odds, strict=True)]
        with inputs_scaled(matrices, gates):
            lost = -log_probs(model, part).mean()
        return lost + SPARSITY * (torch.cat(odds) - shift).sigmoid().mean()

    for _ in descend(odds, GATE_RATE, MASK_STEPS, loss):
        pass
    return [gate(odd.detach()) for odd in odds]


@dataclass(frozen=True)
class BuiltIn:
    """One or more scorers.

    Args:
        score: makes them.
        grids: places that it is for, some of `grids.GRIDS`.
    """

    score: Callable[[Subject], Scores]
    grids: tuple[str, ...] = (BLOCKS, HEADS, GROUPS)


SCORERS: dict[str, BuiltIn] = {
    "identity": BuiltIn(partial(edited, edit="identity"), (BLOCKS, HEADS)),
    "zero": BuiltIn(partial(edited, edit="zero"), (BLOCKS, HEADS)),
    "mlp-zero": BuiltIn(partial(edited, edit="mlp-zero"), (BLOCKS,)),
    "skip": BuiltIn(partial(edited, edit="skip"), (BLOCKS,)),
    "divergence": BuiltIn(divergence, (BLOCKS,)),
    "gradient": BuiltIn(gradient_times_output, (BLOCKS,)),
    "gradient-norm": BuiltIn(gradient_norm),
    "zero-out": BuiltIn(zero_out),
    "activations": BuiltIn(activations),
    "integrated-gradients": BuiltIn(integrated),
    "slimming": BuiltIn(slimming),
    "hard-concrete": BuiltIn(concrete),
    "attribution-patching": BuiltIn(partial(attribution, points=1)),
    "eap-ig": BuiltIn(partial(attribution, points=INTERPOLATIONS)),
    "causal-tracing": BuiltIn(causal_tracing),
}
"""Name -> scorers; in the tables followed by a dot and the quantity, where there are several."""
