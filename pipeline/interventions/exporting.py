"""A stock model whose weights hold an edit, so that any engine loads it without this package.

``zero`` and ``mlp-zero`` set weights to zero; ``skip`` removes blocks. The identity is a pair of
biases: if queries and keys are a constant c on every dimension that rotary embeddings rotate,
independent of the tokens, the score at distance d is::

    2 c^2 s sum_f cos(d theta_f)        s: the scale of the scores, f: the frequencies

It is largest at distance 0. With c so large that every other distance of the context lies `GAP`
below, the softmax is one-hot in float32. Models without rotary embeddings have no such biases: they
encode positions in the states, or in fixed terms of the scores.

Shapes: D width, E size of a head, F numbers that a projection returns, L blocks, T positions.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.interventions.guard import proven
from pipeline.interventions.hooks import require_editable
from pipeline.interventions.interventions import IDENTITY, Intervention
from pipeline.models.context import context_length
from pipeline.models.sites import KEY, QUERY, Anatomy, Site, random_tokens
from pipeline.workflow.errors import InputError, bad_input, shorten

EXPORTABLE = ("zero", "mlp-zero", "skip", IDENTITY)
"""Edits that weights can express; the others depend on the text, or edit a part of a block."""

GAP = 64.0
"""The least difference between the score of the current token and any other: exp(-64) = 1.6e-28."""

QUERIES = 256
"""Positions of the context, evenly spread, whose scores are computed in the model's precision."""

TOLERANCE = 1e-5
"""Tolerance for logits of the export, relative to the largest logit where that is above 1."""

ROWS, POSITIONS = 2, 160
"""Random tokens on which an exported checkpoint is compared: 320."""


def require_blocks(edit: str, blocks: Sequence[int], n_blocks: int, where: str) -> None:
    """Raise if a model does not have the blocks, or would have no block left."""
    beyond = sorted(block for block in blocks if not 0 <= block < n_blocks)
    if beyond or not blocks:
        raise bad_input(
            f"--blocks, of {where}",
            ", ".join(map(str, beyond)) or "no block",
            f"blocks 0 to {n_blocks - 1}, one or more",
            "name blocks that the model has",
        )
    if edit == "skip" and len(set(blocks)) == n_blocks:
        raise bad_input(
            f"--blocks, of {where}",
            f"all {n_blocks} blocks",
            "at least one block that stays",
            "leave out fewer blocks",
        )


def write_edit(model: PreTrainedModel, edit: str, blocks: Sequence[int]) -> None:
    """Write an edit into a model's weights, and into its configuration where necessary.

    The edit is one of `EXPORTABLE`. The model may only be saved afterwards, since its remaining
    blocks keep their old indices.

    Raises:
        InputError: the model is not supported, or its weights cannot express the edit; names the
            edits that can be exported.
    """
    known = proven(model)
    require_editable(known, [Intervention(edit, dict.fromkeys(blocks, edit))])
    sites = [known.sites[block] for block in sorted(set(blocks))]
    if edit == "skip":
        _leave_out(known, set(blocks))
        return
    if edit == IDENTITY:
        written = _one_hot(known, sites)
    else:
        modules = [site.mlp if edit == "mlp-zero" else site.attention for site in sites]
        written = [(w, torch.zeros_like(w)) for m in modules if m for w in m.parameters()]
    _require_untied(model, edit, [weight for weight, _ in written])
    with torch.no_grad():
        for weight, values in written:
            weight.copy_(values)


def tokens_to_compare(model: PreTrainedModel) -> Tensor:
    """Random tokens (`ROWS`, T), T at most `POSITIONS` and the context."""
    return random_tokens(model, ROWS, min(POSITIONS, context_length(model.config)))


@torch.inference_mode()
def logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """The logits of a model, (B, T, V) float32."""
    returned: Tensor = model(input_ids=tokens.to(model.device), use_cache=False).logits
    return returned.float().cpu()


def distance(ours: Tensor, expected: Tensor) -> float:
    """The largest difference of logits, in units of the largest logit where that is above 1."""
    if ours.shape != expected.shape or not ours.isfinite().all():
        return float("inf")
    return float((ours - expected).abs().max() / expected.abs().max().clamp_min(1))


def _leave_out(known: Anatomy, blocks: set[int]) -> None:
    """Delete blocks, and their entries in the per-block lists of the configuration."""
    n_blocks, config = len(known.sites), known.model.config.get_text_config()
    kept = [block for block in range(n_blocks) if block not in blocks]
    for body in known.model.modules():
        for name, child in list(body.named_children()):
            if isinstance(child, nn.ModuleList) and known.sites[0].block in child:
                setattr(body, name, nn.ModuleList(child[block] for block in kept))
    for name, value in [*vars(config).items()]:
        if isinstance(value, (list, tuple)) and len(value) == n_blocks:
            setattr(config, name, [value[block] for block in kept])
    if getattr(config, "attention_types", None):  # GPT-Neo spells `attention_layers` in groups
        config.attention_types = [[[kind], 1] for kind in config.attention_layers]
    config.num_hidden_layers = len(kept)


def _one_hot(known: Anatomy, sites: Sequence[Site]) -> list[tuple[nn.Parameter, Tensor]]:
    """Weights of queries and keys, with values that make the softmax one-hot on the token."""
    rotary = _rotary(known)
    projections = [_projections(known, site) for site in sites]
    modules = [module for module, _ in projections[0]]
    if any(module.bias is None for module in modules):
        _add_biases(known, modules)
    size, turned = sites[0].values.size, 2 * len(rotary.inv_freq)
    pattern = torch.zeros(size)
    pattern[:turned] = _constant(known, rotary, _owner(known.model, sites[0].source))
    written = []
    for of_site in projections:
        for projection, rows in of_site:
            weight, bias = projection.weight.detach().clone(), projection.bias.detach().clone()
            weight[rows] = 0
            bias[rows] = pattern.repeat(len(rows) // size).to(bias)
            written += [(projection.weight, weight), (projection.bias, bias)]
    return written


def _rotary(known: Anatomy) -> Any:
    """The model's rotary embedding."""
    rotary = [m for m in known.body.modules() if isinstance(getattr(m, "inv_freq", None), Tensor)]
    if len(rotary) != 1:
        got = "no rotary embedding" if not rotary else f"{len(rotary)} rotary embeddings"
        raise _refusal(
            known, f"{got}, so that no pair of biases singles out the current token in every block"
        )
    if known.longest is not None:
        kind = rotary[0].rope_type
        raise _refusal(known, f"rotary embeddings of type {kind}, which depend on the length")
    return rotary[0]


def _projections(known: Anatomy, site: Site) -> list[tuple[Any, Tensor]]:
    """The modules that compute queries and keys, each with the rows for these."""
    source, parts = site.source, dict[nn.Module, list[Tensor]]()
    if not isinstance(source, nn.Linear):
        raise _refusal(known, f"queries and keys from a {type(source).__name__}")
    children = _owner(known.model, source).named_children()
    if any("norm" in name and name[0] in "qk" for name, _ in children):
        raise _refusal(known, "norms between the projections and the scores, which scale biases")
    for where in (QUERY, KEY):
        tap = site.tap(where)
        if tap is None or not isinstance(tap.module, nn.Linear):
            raise _refusal(known, "no projections q_proj and k_proj beside that of the values")
        rows = torch.arange(tap.module.out_features)[tap.columns]
        parts.setdefault(tap.module, []).append(rows)
    return [(module, torch.cat(rows)) for module, rows in parts.items()]


def _owner(model: nn.Module, source: nn.Module) -> nn.Module:
    """The module that a module is a child of: the attention that its projection belongs to."""
    return next(m for m in model.modules() if any(child is source for child in m.children()))


def _add_biases(known: Anatomy, modules: Sequence[nn.Module]) -> None:
    """Add the biases that the configuration leaves out, as zeros, those of `modules` among them."""
    model, config = known.model, known.model.config
    own = {name for name, _ in model.named_parameters()}
    needed = {f"{name}.bias" for name, module in model.named_modules() if module in modules}
    for flag in [name for name, value in vars(config).items() if "bias" in name and value is False]:
        changed = copy.deepcopy(config)
        setattr(changed, flag, True)
        with torch.device("meta"):
            other = dict(type(model)(changed).named_parameters())
        added = set(other) - own
        if needed <= added and all(name.endswith(".bias") for name in added):
            for name in added:
                place, _, last = name.rpartition(".")
                zeros = torch.zeros(other[name].shape, dtype=model.dtype, device=model.device)
                setattr(model.get_submodule(place), last, nn.Parameter(zeros))
            setattr(config, flag, True)
            return
    raise _refusal(known, "no biases of queries and keys, nor a setting that adds them")


def _constant(known: Anatomy, rotary: Any, owner: nn.Module) -> float:
    """c: the value of queries and keys on the rotated dimensions."""
    frequencies = rotary.inv_freq.double().cpu()
    scale = float(getattr(owner, "scaling", None) or known.sites[0].values.size ** -0.5)
    scale *= float(getattr(rotary, "attention_scaling", 1.0)) ** 2
    context = max(2, context_length(known.model.config))
    smallest = min(
        float((2 * (1 - torch.cos(distances[:, None] * frequencies))).sum(-1).min())
        for distances in torch.split(torch.arange(1, context).double(), 4096)
    )
    squared = GAP / (scale * max(smallest, 1e-30))
    constant, dtype = float(squared**0.5), known.model.dtype
    if not scale * _least_lead(constant, frequencies, context, dtype) >= GAP / 2:
        raise _refusal(
            known,
            f"rotary embeddings whose frequencies tell two of {context} positions apart only with "
            f"scores of {squared * 2 * len(frequencies):.1e}, more than {dtype} computes",
        )
    return constant


def _least_lead(constant: float, frequencies: Tensor, context: int, dtype: torch.dtype) -> float:
    """By how much the score of a position with itself leads, at least, in a precision.

    The rotated numbers are rounded to it, as in the model, and their products are summed in
    float32. NaN where they overflow.
    """
    positions = torch.arange(context, dtype=torch.float32)
    angles = positions[:, None] * frequencies.float()
    cos, sin = (constant * turn.to(dtype) for turn in (angles.cos(), angles.sin()))
    turned = torch.cat([cos - sin, cos + sin], -1).float()
    queries = torch.linspace(0, context - 1, min(QUERIES, context)).long()
    scores = turned[queries] @ turned.T
    own = scores.gather(1, queries[:, None])
    later = positions >= queries[:, None]  # itself, too
    return float((own - scores.masked_fill(later, -torch.inf)).min())


def _require_untied(model: PreTrainedModel, edit: str, written: Sequence[nn.Parameter]) -> None:
    """Raise if the weights to write are shared with other modules."""
    users: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(parameter.data_ptr(), []).append(name)
    shared = [users[w.data_ptr()] for w in written if len(users[w.data_ptr()]) > 1]
    if shared:
        raise bad_input(
            f"{type(model).__name__}: the edit {edit}",
            f"tied weights: {shorten(', '.join(shared[0]))}",
            "weights of the edited blocks alone",
            "export skip, which writes no weights; or evaluate the edit without an export",
        )


def _refusal(known: Anatomy, got: str) -> InputError:
    others = [e for e in EXPORTABLE if e != IDENTITY and (e == "skip" or known.additive)]
    return bad_input(
        f"the edit {IDENTITY} of {type(known.model).__name__} as weights",
        got,
        "projections with biases for queries and keys, and one rotary embedding",
        f"export another edit: {', '.join(others)}; or use the edit without an export "
        "(pipeline.interventions.bypassed, or lm-eval's --model bypass)",
    )
