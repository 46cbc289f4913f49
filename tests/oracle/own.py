"""Edits of one's own by the plainest means: the whole text is read again for every token.

No cache, no batch of interventions, no hooks of the engine: where a family has its modules is
written down in `plain`, and which columns are queries, keys and values is written down here.

Shapes: B rows, T positions, F numbers at a site, H heads, K key-value heads, E size of a head.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pipeline.interventions.edits import rule_of
from pipeline.interventions.interventions import Edit
from tests.oracle import plain

Placed = tuple[int, Edit]
"""A block and its edit: a function at a site, limited to heads, neurons and positions."""


def columns(model: Any, what: str) -> tuple[str, list[int]]:
    """The name of the projection beside that of the values, and the columns of its output."""
    config, kind = model.config, model.config.model_type
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    third = ["query", "key", "value"].index(what)
    if kind in ("gpt_neox", "bloom"):
        return "", [h * 3 * size + third * size + e for h in range(heads) for e in range(size)]
    if kind in ("gpt2", "mpt"):
        return "", [third * heads * size + i for i in range(heads * size)]
    if kind == "phi3":
        shared = config.num_key_value_heads * size
        ends = [0, heads * size, heads * size + shared, heads * size + 2 * shared]
        return "", list(range(ends[third], ends[third + 1]))
    return f"{what[0]}_proj", []


def place(model: Any, placed: Placed) -> tuple[Any, bool, list[int] | None]:
    """The module at a site, whether its input is the site, and its columns."""
    block, edit = placed
    part, site = plain.parts(model)[block], rule_of(edit.name).site
    if site in ("query", "key", "value"):
        name, of = columns(model, site)
        if not name:
            return part.source, False, of
        holder = next(m for m in part.block.modules() if part.source in m.children())
        return getattr(holder, name), False, None
    if edit.heads and site == "attention":
        return part.context, True, None
    if edit.neurons and site == "mlp":
        return part.mlp, True, None
    modules = {
        "context": part.context, "attention": part.output, "mlp": part.mlp, "block": part.block,
    }  # fmt: skip
    return modules[site], site == "context", None


def seen(model: Any, tokens: Tensor, placed: Placed) -> Tensor:
    """The values (B, T, F) at a site of the unmodified model."""
    module, entering, of = place(model, placed)
    kept: list[Tensor] = []

    def keep(_module: Any, args: Any, returned: Any) -> None:
        x = args[0] if entering else returned[0] if isinstance(returned, tuple) else returned
        kept.append(x.reshape(*tokens.shape, -1).clone())

    handle = module.register_forward_hook(keep)
    model(input_ids=tokens, use_cache=False)
    handle.remove()
    return kept[0] if of is None else kept[0][..., of]


def _hooks(
    model: Any, shape: Any, start: int, placed: Placed, mean: Tensor, other: Tensor | None
) -> Iterator[Any]:
    """Register what carries out an edit on texts of this shape (B, T), suffixes from `start`."""
    block, edit = placed
    part, heads, neurons = plain.parts(model)[block], edit.heads or (), edit.neurons or ()
    module, entering, of = place(model, placed)
    here = SimpleNamespace(mean=mean, other=other)

    def project(mixed: Tensor) -> Tensor:
        if part.context is not part.output:
            mixed = part.context.forward(mixed)
        return part.output.forward(mixed)

    def enter(_module: Any, args: Any, kwargs: Any) -> None:
        here.entered = (args[0] if args else kwargs["hidden_states"]).clone()

    def values(_module: Any, _args: Any, returned: Tensor) -> None:
        here.values = part.values(returned).reshape(*shape, -1)

    def change(passing: Tensor) -> Tensor:
        whole = passing.reshape(*shape, -1).clone()
        here.now = (whole if of is None else whole[..., of]).clone()
        before, here.project = here.now.clone(), project
        made = rule_of(edit.name).apply(here).clone()
        size = made.shape[-1] // part.heads if heads else 1
        for column in range(made.shape[-1]) if heads or neurons else ():
            if column // size not in (*heads, *neurons):
                made[..., column] = before[..., column]
        for position in range(shape[1]):
            kept = {"prefix": position < start, "suffix": position >= start}
            kept["last"] = position == start - 1
            if edit.positions and not kept[edit.positions]:
                made[:, position] = before[:, position]
        whole[..., slice(None) if of is None else of] = made
        return whole.reshape(passing.shape)

    def returned(_module: Any, _args: Any, made: Any) -> Any:
        return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)

    yield part.block.register_forward_pre_hook(enter, with_kwargs=True)
    yield part.source.register_forward_hook(values)
    if entering:
        yield module.register_forward_pre_hook(lambda _m, args: (change(args[0]), *args[1:]))
    else:
        yield module.register_forward_hook(returned)


@torch.inference_mode()
def complete(
    model: Any,
    tokens: Tensor,
    length: int,
    edits: Sequence[Placed],
    other: Callable[[Tensor], tuple[Any, Tensor]] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The greedy continuation (B, S), its margins, and log p of the true suffix, summed (B,).

    The edits are carried out together. `other` gives, for the tokens that are read, the model and
    the tokens of `here.other`.
    """
    stop = model.generation_config.eos_token_id
    never = [] if stop is None else [stop] if isinstance(stop, int) else stop
    start = tokens.shape[1] - length
    means = [seen(model, tokens, placed).double().mean((0, 1)).float() for placed in edits]

    def logits(text: Tensor) -> Tensor:
        others = {}
        for number, placed in enumerate(edits) if other else ():
            source, read = other(text)
            others[number] = seen(source, read, placed).expand(len(text), -1, -1)
        with ExitStack() as stack:
            for number, placed in enumerate(edits):
                given = means[number], others.get(number)
                for handle in _hooks(model, text.shape, start, placed, *given):
                    stack.callback(handle.remove)
            made: Tensor = model(input_ids=text, use_cache=False).logits.float()
        return made

    forced = logits(tokens[:, :-1])[:, -length:].log_softmax(-1)
    log_prob = forced.gather(-1, tokens[:, -length:, None])[..., 0].double().sum(-1)
    text, margins = tokens[:, :start], []
    for _ in range(length):
        last = logits(text)[:, -1]
        last[:, never] = -torch.inf
        best = last.topk(2).values
        margins.append(best[:, 0] - best[:, 1])
        text = torch.cat([text, last.argmax(-1, keepdim=True)], 1)
    return text[:, start:], torch.stack(margins).amin(0), log_prob
