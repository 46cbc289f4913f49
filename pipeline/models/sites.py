"""Finds the blocks of a stock transformers model, and in each its values and output projection.

No family is named here. The modules of a block are found by their behaviour when the model reads a
few random tokens. The first token can attend only to itself, so the input of the output projection
there is that token's value. The module whose output holds the values is the one from which they can
be selected in one of two ways::

    grouped         K groups; the last E numbers of each are a value   llama, gpt_neox, falcon, …
    concatenated    the last K E numbers are the values                gpt2, phi3, mpt, …

where K key-value heads of E numbers serve H heads. A model without such a module, because it has
sinks, gates, or state-space layers, has no "attention weights = identity", and is rejected.

Shapes: B rows, T positions, D width, H heads, K key-value heads, E size of a head, C = H E.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from pipeline.models.modules import attached, states_in, states_out
from pipeline.models.precision import at_least_single, without_hooks
from pipeline.workflow.errors import InputError, bad_input

SITES = (
    ATTENTION, CONTEXT, MLP, BLOCK, QUERY, KEY, VALUE, INNER, PATTERN,
) = (
    "attention", "context", "mlp", "block", "query", "key", "value", "neurons", "pattern",
)  # fmt: skip
"""The places in a block whose values an edit can replace; no kernel shows `PATTERN`."""

_SLOW_GELUS = (NewGELUActivation, FastGELUActivation)
_ROWS, _TOKENS = (2, 3), 7  # two batch sizes: tensors that differ in size are batched


@dataclass(frozen=True)
class Values:
    """How to select the values from a module's output.

    Args:
        concatenated: as in the module's docstring; else grouped.
        groups: K.
        heads: H.
        size: E.
        clip: values are clamped to ±clip; None: they are not.
    """

    concatenated: bool
    groups: int
    heads: int
    size: int
    clip: float | None

    def pick(self, x: Tensor) -> Tensor:
        """(…, T, F) to (…, T, C), heads side by side as the output projection receives them."""
        if self.concatenated:
            x = x[..., -self.groups * self.size :]
        x = torch.unflatten(x, -1, (self.groups, -1))[..., -self.size :]
        if self.groups != self.heads:
            x = x.repeat_interleave(self.heads // self.groups, -2)
        x = x.flatten(-2)
        return x if self.clip is None else x.clamp(-self.clip, self.clip)


class Tap(NamedTuple):
    """Where the values of a site pass.

    Args:
        module: that receives or returns them.
        entering: whether it receives them.
        columns: those of its output that are these values.
    """

    module: nn.Module
    entering: bool = False
    columns: Tensor | slice = slice(None)


@dataclass(frozen=True)
class Site:
    """The modules of one block that edits act on.

    Args:
        block: (B, T, D) to (B, T, D).
        source: returns what the values are picked from.
        values: picks them.
        mixer: receives the mixed values (B, T, C): the output projection, or a norm before it.
        attention: the output projection; its output is what attention adds.
        mlp: the MLP's last matrix; its output is what the MLP adds.
        whole_mlp: the MLP, states (B, T, D) to states; None if it is not a separate module.
        projections: `QUERY`, `KEY` and `VALUE` -> where they pass, as far as they are projected.
    """

    block: nn.Module
    source: nn.Module
    values: Values
    mixer: nn.Module
    attention: nn.Module
    mlp: nn.Module | None
    whole_mlp: nn.Module | None
    projections: Mapping[str, Tap]

    def project(self, mixed: Tensor) -> Tensor:
        """The output projection (…, C) to (…, D), with the norm before it, without hooks."""
        if self.mixer is not self.attention:
            mixed = without_hooks(self.mixer, mixed)
        return without_hooks(self.attention, mixed)

    def tap(self, where: str) -> Tap | None:
        """Where the values of a site pass; None if this block does not show them."""
        if where in (INNER, MLP):
            return None if self.mlp is None else Tap(self.mlp, where == INNER)
        taps = {
            CONTEXT: Tap(self.mixer, entering=True),
            ATTENTION: Tap(self.attention),
            BLOCK: Tap(self.block),
            **self.projections,
        }
        return taps.get(where)


@dataclass(frozen=True)
class Anatomy:
    """The modules and properties of a model that the engine needs.

    Args:
        model: a stock causal language model.
        body: the module that holds the blocks; returns the states that the head reads.
        sites: one per block.
        additive: whether each block returns its input where `attention` and `mlp` give zero, so
            that their outputs can be replaced.
        plain: whether it also adds these outputs as they are, neither normalized nor scaled.
        batched: paths of a block's arguments whose first dimension can grow with the batch.
        parallel: whether the MLPs read the input of their blocks, without attention's output.
        slow_activations: activations for which PyTorch has an equivalent, faster kernel.
        longest: tokens of a text beyond which its rotary angles depend on its length; None: they
            never do.
    """

    model: Any
    body: Any
    sites: tuple[Site, ...]
    additive: bool
    plain: bool
    batched: frozenset[Path]
    parallel: bool
    slow_activations: tuple[nn.Module, ...]
    longest: int | None


Path = tuple[str | int, ...]
_State = list[tuple[object, ...]]
_KNOWN: WeakKeyDictionary[nn.Module, tuple[_State, Anatomy]] = WeakKeyDictionary()


def anatomy(model: PreTrainedModel) -> Anatomy:
    """The sites of a model; found at the first call, and again after a change of its modules.

    Each call compares the modules, their types and order, functions set as their `forward`, and
    hooks with those of the last search. Values of weights may change freely. The model is in
    evaluation mode.

    Raises:
        InputError: not a causal decoder, a block without ordinary attention, or adapters, whatever
            their values; or as for `require_stock`. Says what was found.
    """
    if model not in _KNOWN or _KNOWN[model][0] != _state(model):
        require_stock(model)
        adapters = [n for n, m in model.named_modules() if type(m).__module__.startswith("peft.")]
        if adapters:
            raise bad_input(
                f"{type(model).__name__}: {adapters[0]}",
                f"{len(adapters)} modules of adapters",
                "weights that are whole without adapters: an edit would miss what they add",
                "merge them (merge_and_unload of peft), or take them out",
            )
        with torch.inference_mode(), at_least_single(model):
            found = replace(_find(model), model=None)  # would keep its own key alive
        _KNOWN[model] = _state(model), found  # transformers adds hooks when it first runs
    return replace(_KNOWN[model][1], model=model)


def require_stock(model: Any) -> None:
    """Raise for a model in a wrapper, with quantized weights, or of several precisions.

    Raises:
        InputError: it is one of these.
    """
    if not hasattr(model, "config"):
        raise bad_input(
            "the model",
            type(model).__name__,
            "a stock transformers model",
            "give the model inside: of DataParallel, model.module",
        )
    kinds = {str(weight.dtype) for weight in model.parameters()}
    quantized = not all(weight.is_floating_point() for weight in model.parameters())
    if quantized or len(kinds) > 1:
        raise bad_input(
            f"the weights of {type(model).__name__} ({model.config.model_type})",
            " and ".join(sorted(kinds)),
            "floating point" if quantized else "one precision",
            "load the original weights: quantized ones are not supported"
            if quantized
            else "convert them: model.float(), or model.to(torch.bfloat16)",
        )


def _state(model: nn.Module) -> _State:
    """What must stay as it is for an anatomy to hold; what this package sets does not count."""
    return [
        (
            name,
            ref(module),
            type(module),
            _held(vars(module).get("forward")),
            *(
                number
                for hooks in (module._forward_hooks, module._forward_pre_hooks)
                for number, hook in hooks.items()
                if not _is_ours(hook)
            ),
        )
        for name, module in model.named_modules()
    ]


def _held(function: Any) -> object:
    """What tells a `forward` that others set from any other, without keeping it alive."""
    if _is_ours(function):
        return None
    bound = getattr(function, "__self__", None)
    return ref(getattr(function, "__func__", function)), id(bound)


def _is_ours(function: Any) -> bool:
    """Whether this package set a hook, or a function in place of `forward`; None counts."""
    of = getattr(getattr(function, "func", function), "__module__", "")
    return function is None or str(of).startswith("pipeline.")


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """The tensors in nested tuples, lists and dicts, with their paths."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, (dict, tuple, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, (*path, key))


class _Call(NamedTuple):
    """A call of a module without modules below it but parametrizations, in the order of calls."""

    name: str
    module: nn.Module
    received: Tensor
    returned: Tensor


def _find(model: Any) -> Anatomy:
    config = model.config.get_text_config()
    owner = next(
        (
            (body, child)
            for body in model.modules()
            for child in body.children()
            if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
        ),
        None,
    )
    if owner is None or model.config.is_encoder_decoder or model.get_output_embeddings() is None:
        raise _refusal(model, "the model", "no list of decoder blocks with a head after them")
    body, blocks = owner
    batched: set[Path] = set()
    for masked in (True, False):
        try:
            (_, few), (calls, many) = (_record(model, body, blocks, n, masked) for n in _ROWS)
        except (TypeError, ValueError) as error:
            raise _refusal(model, type(body).__name__, f"{error} on reading tokens") from error
        sizes = {path: len(x) for path, x in leaves(few) if x.ndim > 1}
        grown = (path for path, x in leaves(many) if len(x) != sizes.get(path, len(x)))
        batched.update(tuple(path) for _block, *path in grown)
    for number, of_block in enumerate(calls):
        if of_block and not of_block[-1].returned.isfinite().all():
            raise broken(model, f"block {number}")
    sites = tuple(_site(model, number, block, calls[number]) for number, block in enumerate(blocks))
    additive, plain, parallel = _wiring(model, body, sites)
    return Anatomy(
        model=model,
        body=body,
        sites=sites,
        additive=additive,
        plain=plain,
        batched=frozenset(batched),
        parallel=parallel,
        slow_activations=tuple(m for m in body.modules() if isinstance(m, _SLOW_GELUS)),
        longest=_longest(body),
    )


def _longest(body: Any) -> int | None:
    """As in `Anatomy`: where transformers' `dynamic_rope_update` begins to change frequencies."""
    limits = []
    for module in body.modules():
        kinds = getattr(module, "rope_type", None) or ""
        for layer, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
            if kind == "longrope":
                settings = module.config.rope_parameters
                settings = settings[layer] if layer else settings
                limits.append(int(settings["original_max_position_embeddings"]))
            elif "dynamic" in kind:  # only a shorter text undoes what a longer one has changed
                limits.append(int(module.original_max_seq_len) - 1)
    return min(limits, default=None)


def _record(
    model: Any, body: Any, blocks: nn.ModuleList, rows: int, masked: bool
) -> tuple[list[list[_Call]], list[Any]]:
    """What happens in each block while a model reads tokens, and with which arguments."""
    calls: list[list[_Call]] = [[] for _ in blocks]
    arguments: list[Any] = []

    def keep(number: int, name: str, module: nn.Module, received: Any, returned: Any) -> None:
        x = _by_row(received[0] if received else None, rows)
        y = _by_row(returned, rows)
        if x is not None and y is not None:
            calls[number].append(_Call(name, module, x.clone(), y.clone()))  # may change in place

    def see(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments.append({"args": args, **kwargs})

    def hooks() -> Iterator[RemovableHandle]:
        for number, block in enumerate(blocks):
            yield block.register_forward_pre_hook(see, with_kwargs=True)
            for name, module in block.named_modules():
                if all(child == "parametrizations" for child, _ in module.named_children()):
                    yield module.register_forward_hook(partial(keep, number, name))

    with attached(hooks()):
        _read(model, body, rows, masked)
    return calls, arguments


def random_tokens(model: Any, rows: int, length: int = _TOKENS) -> Tensor:
    """Tokens (rows, T) on the model's device, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.get_text_config().vocab_size
    return torch.randint(vocabulary, (rows, length), generator=generator).to(model.device)


def padded_call(body: Any, tokens: Tensor) -> dict[str, Tensor]:
    """The arguments with which the body treats the first column of `tokens` as padding."""
    mask = torch.ones_like(tokens)
    mask[:, 0] = 0
    return masked_call(body, mask, tokens.shape[1])


def masked_call(body: Any, mask: Tensor, length: int) -> dict[str, Tensor]:
    """The arguments that tell a body of padding, of which `length` T tokens are read.

    `mask` is (B, T with what a cache has) int64, 0 where there is padding.
    """
    call = {"attention_mask": mask}
    if "position_ids" in inspect.signature(body.forward).parameters:
        call["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)[:, -length:]
    return call


def _read(model: Any, body: Any, rows: int, masked: bool = False) -> None:
    """Let the body read random tokens, the first column as padding if `masked`."""
    tokens = random_tokens(model, rows)
    body(input_ids=tokens, use_cache=False, **(padded_call(body, tokens) if masked else {}))


def _by_row(x: Any, rows: int) -> Tensor | None:
    """A tensor (rows, T, …) or (rows x T, F) as (rows, T, F); None for any other."""
    if not isinstance(x, Tensor) or x.ndim < 2:
        return None
    if x.shape[:2] == (rows, _TOKENS):
        return x.flatten(2) if x.ndim > 2 else None
    return torch.unflatten(x, 0, (rows, _TOKENS)) if x.shape[0] == rows * _TOKENS else None


def _site(model: Any, number: int, block: nn.Module, calls: list[_Call]) -> Site:
    """The site of a block: the first module that receives mixed values, and related modules."""
    for at, call in enumerate(calls):
        for source in reversed(calls[:at]):
            values = _values(model, source.returned, call.received)
            if values is None:
                continue
            attention = call.name.partition(".")[0]
            matrices = [
                c for c in calls if getattr(getattr(c.module, "weight", None), "ndim", 0) == 2
            ]
            outputs = [
                c.module for c in calls[at:] if c in matrices and c.name.startswith(attention)
            ]
            other = [c.module for c in matrices if not c.name.startswith(attention)]
            read_by = [c for c in calls[at:] if torch.equal(c.received, call.received)]
            readers = [c.name for c in read_by if not torch.equal(c.returned, c.received)]
            if len(readers) > 1:
                raise _refusal(
                    model,
                    f"block {number}, {type(block).__name__}",
                    f"several modules that read the mixed values: {', '.join(readers)}",
                )
            if outputs:
                mlp = other[-1] if other else None
                whole_mlp = next(
                    (c for c in block.children() if mlp in tuple(c.modules())[1:]), None
                )
                taps = _projections(block, source, values)
                return Site(
                    block, source.module, values, call.module, outputs[0], mlp, whole_mlp, taps
                )
    kinds = ", ".join(dict.fromkeys(type(call.module).__name__ for call in calls))
    raise _refusal(
        model,
        f"block {number}, {type(block).__name__}",
        f"modules {kinds}; none receives the value of the first token at the first token",
    )


@torch.inference_mode(False)  # `bypassed` may keep gradients through the columns
def _projections(block: nn.Module, source: _Call, values: Values) -> dict[str, Tap]:
    """The projections of queries, keys and values; transformers orders them so in all families."""
    width = values.groups * values.size
    columns = torch.arange(source.returned.shape[-1])
    if len(columns) == width:
        owner = block.get_submodule(source.name.rpartition(".")[0])
        found = {QUERY: getattr(owner, "q_proj", None), KEY: getattr(owner, "k_proj", None)}
        taps = {where: Tap(module) for where, module in found.items() if module is not None}
        return {**taps, VALUE: Tap(source.module)}
    groups, size = (1, width) if values.concatenated else (values.groups, values.size)
    by_group = torch.unflatten(columns, 0, (groups, -1))
    ends = by_group[:, : -2 * size], by_group[:, -2 * size : -size], by_group[:, -size:]
    return {
        where: Tap(source.module, columns=these.flatten())
        for where, these in zip((QUERY, KEY, VALUE), ends, strict=True)
    }


def _values(model: Any, projected: Tensor, mixed: Tensor) -> Values | None:
    """How `mixed` (B, T, C), at the first token and only there, is selected from `projected`."""
    config = model.config.get_text_config()
    clip = getattr(config, "clip_qkv", None)
    if clip is None:
        clip = getattr(getattr(config, "attn_config", None), "clip_qkv", None)
    heads, width = getattr(config, "num_attention_heads", 0), projected.shape[-1]
    if not heads or mixed.shape[-1] % heads:
        return None
    size = mixed.shape[-1] // heads
    tolerance = 16 * torch.finfo(mixed.dtype).eps * float(mixed[:, 0].abs().amax())
    for groups in (g for g in range(heads, 0, -1) if heads % g == 0 and g * size <= width):
        for concatenated in (False, True):
            if not concatenated and width % groups:
                continue
            values = Values(concatenated, groups, heads, size, clip)
            near = ((values.pick(projected) - mixed).abs() <= tolerance).all(-1)
            if near[:, 0].all() and not near.all():
                return values
    return None


def writing(sites: Iterable[Site]) -> list[nn.Module]:
    """The matrices that write to the stream, attention's and the MLP's of each block in turn."""
    return [each for site in sites for each in (site.attention, site.mlp) if each is not None]


def _wiring(model: Any, body: Any, sites: Sequence[Site]) -> tuple[bool, bool, bool]:
    """How attention and MLP are wired into the stream, as `Anatomy` has it: additive, plain,
    parallel.

    Tested by the outputs of blocks when both parts give zero, and when both give something else;
    and by the input of the first MLP when attention gives zero, and something else.
    """
    if any(site.mlp is None for site in sites):
        return False, False, False
    added: list[Tensor] = []
    received: list[Tensor] = []

    def nothing(_module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        return torch.zeros_like(returned)

    def ramp(like: Tensor) -> Tensor:
        return torch.linspace(0, 1, like.shape[-1]).to(like).expand_as(like)

    def something(_module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        return ramp(returned).clone()  # some families add in place

    def compare(_module: nn.Module, args: Any, kwargs: dict[str, Any], returned: Any) -> None:
        added.append(states_out(returned) - states_in(args, kwargs))

    def giving(change: Any) -> list[Tensor]:
        """What each block adds where its attention and its MLP both give this."""
        added.clear()
        hooks = [module.register_forward_hook(change) for module in writing(sites)]
        hooks += [s.block.register_forward_hook(compare, with_kwargs=True) for s in sites]
        with attached(hooks):
            _read(model, body, _ROWS[0])
        return [*added]

    def look(_module: nn.Module, args: Any) -> None:
        received.extend(x for x in args if isinstance(x, Tensor))

    first = sites[0].whole_mlp
    with attached(() if first is None else [first.register_forward_pre_hook(look)]):
        with attached([sites[0].attention.register_forward_hook(something)]):
            _read(model, body, _ROWS[0])
        additive = not any(each.any() for each in giving(nothing))
    parallel = len(received) == 2 and torch.equal(*received)
    plain = additive and all(torch.allclose(x, 2 * ramp(x), atol=1e-4) for x in giving(something))
    return additive, plain, parallel and len({type(site.block) for site in sites}) == 1


def broken(model: Any, where: str) -> InputError:
    """The error for a model whose results on random tokens are not finite."""
    return bad_input(
        what=f"{type(model).__name__} on random tokens",
        got=f"NaN or infinity in {where}, in {torch.promote_types(model.dtype, torch.float32)}",
        expected="finite states",
        remedy="check the checkpoint: its weights are broken",
    )


def _refusal(model: Any, what: str, got: str) -> InputError:
    return bad_input(
        what=f"{type(model).__name__} ({model.config.model_type}): {what}",
        got=got,
        expected="a decoder whose every block mixes values by attention weights, so that the "
        "first token, which sees itself alone, gets its own value",
        remedy="evaluate another model; sinks, gated attention and state-space layers have no "
        "identity weights",
    )
