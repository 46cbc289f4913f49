"""The plain loop: stock transformers models, one intervention after the other, nothing clever.

It is the oracle for the engine and the rival that its speed is measured against. It imports
nothing of the engine but the classes of what goes in and comes out. Where a family has its blocks,
values and projections is written down by hand from transformers' modeling files.

Shapes: V interventions, N samples, R requests, P prefix and S suffix tokens, B batch,
T positions, D width, H heads, K key-value heads, E size of a head.

Source: arXiv 2501.05078, section 3.2 and A.3.2 (the bypass), 4.1 and Eq. 3 to 5 (what is measured).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import TopKLogitsWarper

from pipeline.interventions.evaluation import Completions, Likelihoods, Request
from pipeline.interventions.interventions import Intervention

# --------------------------------------------------------------------------- families

# transformers' types know neither the attributes of its modules nor what `generate` returns: Any


def _separate(x: Tensor, config: Any) -> Tensor:
    """Values alone, a head after the other, each for as many query heads as share it."""
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    values = x.unflatten(-1, (groups, -1))
    return values.repeat_interleave(config.num_attention_heads // groups, -2).flatten(-2)


def _clipped(x: Tensor, config: Any) -> Tensor:
    clip = config.clip_qkv
    return _separate(x.clamp(-clip, clip) if clip else x, config)


def _by_head(x: Tensor, config: Any) -> Tensor:
    """Query, key and value of the first head, then of the second, and so on."""
    return x.unflatten(-1, (config.num_attention_heads, 3, -1))[..., 2, :].flatten(-2)


def _thirds(x: Tensor, _config: Any) -> Tensor:
    """All queries, all keys, all values."""
    return x.chunk(3, -1)[2]


def _mpt(x: Tensor, config: Any) -> Tensor:
    clip = config.attn_config.clip_qkv
    return _thirds(x.clamp(-clip, clip) if clip else x, config)


def _phi3(x: Tensor, config: Any) -> Tensor:
    """All queries, all keys, all values, with fewer keys and values than queries."""
    size = config.hidden_size // config.num_attention_heads
    return _separate(x[..., -config.num_key_value_heads * size :], config)


def _falcon(x: Tensor, config: Any) -> Tensor:
    """As `FalconAttention._split_heads`."""
    heads = config.num_attention_heads
    if config.new_decoder_architecture:
        groups = config.num_kv_heads
        each = x.unflatten(-1, (groups, heads // groups + 2, -1))[..., -1, :]
        return each.repeat_interleave(heads // groups, -2).flatten(-2)
    if config.multi_query:
        return x.unflatten(-1, (heads + 2, -1))[..., -1, :].repeat(1, 1, heads)
    return _by_head(x, config)


class Names(NamedTuple):
    """Where a family has the modules of a block: their paths in the block, but for the first."""

    blocks: str  # path of the list of blocks in the model
    source: str  # the module whose output holds the values
    values: Callable[[Tensor, Any], Tensor]  # picks them, (B, T, …) to (B, T, H E)
    context: str  # the module that receives the mixed values
    output: str  # the output projection
    mlp: str | None  # the last matrix of the MLP; none in a mixture of experts


def _fused(blocks: str, attention: str) -> Names:
    """The names of a family whose queries, keys and values are one projection, head by head."""
    output = f"{attention}.dense"
    source = f"{attention}.query_key_value"
    return Names(blocks, source, _by_head, output, output, "mlp.dense_4h_to_h")


_LLAMA = Names(
    "model.layers", "self_attn.v_proj", _separate, *["self_attn.o_proj"] * 2, "mlp.down_proj"
)
_BLOOM = _fused("transformer.h", "self_attention")
_OPT = Names(
    "model.decoder.layers", "self_attn.v_proj", _separate, *["self_attn.out_proj"] * 2, "fc2"
)

FAMILIES: Mapping[str, Names] = {
    **dict.fromkeys(
        (
            "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2",
            "gemma3_text", "glm", "glm4", "granite", "helium", "hunyuan_v1_dense", "llama",
            "mistral", "nemotron", "olmo2", "olmo3", "qwen2", "qwen3", "seed_oss", "smollm3",
            "stablelm",
        ),
        _LLAMA,
    ),
    "biogpt": _OPT._replace(blocks="biogpt.layers"),
    "bitnet": _LLAMA._replace(context="self_attn.attn_sub_norm"),
    "bloom": _BLOOM,
    "falcon": _BLOOM._replace(values=_falcon),
    "gpt2": Names("transformer.h", "attn.c_attn", _thirds, *["attn.c_proj"] * 2, "mlp.c_proj"),
    "gpt_neo": Names(
        "transformer.h", "attn.attention.v_proj", _separate, *["attn.attention.out_proj"] * 2,
        "mlp.c_proj",
    ),
    "gpt_neox": _fused("gpt_neox.layers", "attention"),
    "gptj": Names("transformer.h", "attn.v_proj", _separate, *["attn.out_proj"] * 2, "mlp.fc_out"),
    "mixtral": _LLAMA._replace(mlp=None),
    "mpt": Names("transformer.blocks", "attn.Wqkv", _mpt, *["attn.out_proj"] * 2, "ffn.down_proj"),
    "olmo": _LLAMA._replace(values=_clipped),
    "opt": _OPT,
    "persimmon": _fused("model.layers", "self_attn"),
    "phi": _LLAMA._replace(context="self_attn.dense", output="self_attn.dense", mlp="mlp.fc2"),
    "phi3": _LLAMA._replace(source="self_attn.qkv_proj", values=_phi3),
    "qwen3_moe": _LLAMA._replace(mlp=None),
    "starcoder2": _LLAMA._replace(mlp="mlp.c_proj"),
    "xglm": _OPT._replace(blocks="model.layers"),
}  # fmt: skip
"""transformers' model type -> names."""


class Parts(NamedTuple):
    """The modules of one block; see `Names`."""

    block: nn.Module
    source: nn.Module
    context: nn.Module
    output: nn.Module
    mlp: nn.Module | None
    values: Callable[[Tensor], Tensor]
    heads: int


def parts(model: Any) -> list[Parts]:
    """The modules of each block of a model of one of the `FAMILIES`."""
    names, config = FAMILIES[model.config.model_type], model.config
    return [
        Parts(
            block,
            *map(block.get_submodule, (names.source, names.context, names.output)),
            block.get_submodule(names.mlp) if names.mlp else None,
            lambda x: names.values(x, config),
            config.num_attention_heads,
        )
        for block in model.get_submodule(names.blocks)
    ]


# --------------------------------------------------------------------------- edits

Means = Mapping[tuple[int, str], Tensor]
"""(block, ``mean`` or ``mlp-mean``) -> mean (D,) of what the projection returns."""

Edited = Callable[[Any, Intervention, Means], Any]
"""A context in which the model has the edits of an intervention."""


@contextmanager
def bypassed(model: Any, intervention: Intervention, means: Means | None = None) -> Iterator[Any]:
    """Edit the intervention's blocks for as long as the context lasts; the baseline has none."""
    blocks = parts(model)
    with ExitStack() as stack:
        for block, edit in intervention.edits.items():
            for hook in _edit(blocks[block], intervention, edit, (means or {}).get((block, edit))):
                stack.callback(hook.remove)
        yield model


def _edit(part: Parts, intervention: Intervention, edit: str, mean: Tensor | None) -> Iterator[Any]:
    """Register the hooks of one edit of one block."""
    seen: dict[str, Tensor] = {}

    def keep_values(_module: Any, _args: Any, projected: Tensor) -> None:
        seen["values"] = part.values(projected)

    def keep_input(_module: Any, args: Any, kwargs: Any) -> None:
        seen["input"] = (args[0] if args else kwargs["hidden_states"]).clone()

    def pass_values(_module: Any, args: Any) -> Any:
        values = seen.pop("values")
        if edit == "heads":
            own, mixed = values.chunk(part.heads, -1), list(args[0].chunk(part.heads, -1))
            for head in intervention.heads or ():
                mixed[head] = own[head]
            values = torch.cat(mixed, -1)
        return (values, *args[1:])

    def pass_noise(_module: Any, _args: Any, returned: Tensor) -> Tensor:
        values = seen.pop("values")
        if part.context is not part.output:
            values = part.context.forward(values)
        change = part.output.forward(values) - returned
        generator = torch.Generator().manual_seed(intervention.seed)
        width = change.shape[-1]
        order = torch.randperm(width, generator=generator)
        signs = torch.randint(2, (width,), generator=generator) * 2 - 1
        return returned + change[..., order.to(change.device)] * signs.to(change)

    def pass_input(_module: Any, _args: Any, returned: Any) -> Any:
        entered = seen.pop("input")
        return (entered, *returned[1:]) if isinstance(returned, tuple) else entered

    if edit in ("identity", "heads", "noise"):
        yield part.source.register_forward_hook(keep_values)
    if edit in ("identity", "heads"):
        yield part.context.register_forward_pre_hook(pass_values)
    elif edit == "skip":
        yield part.block.register_forward_pre_hook(keep_input, with_kwargs=True)
        yield part.block.register_forward_hook(pass_input)
    else:
        act = {
            "noise": pass_noise,
            "zero": lambda _m, _a, y: torch.zeros_like(y),
            "mean": lambda _m, _a, y: mean.to(y).expand_as(y).clone(),
        }[edit.removeprefix("mlp-")]
        module = part.mlp if edit.startswith("mlp-") else part.output
        yield module.register_forward_hook(act)  # type: ignore[union-attr]


@torch.inference_mode()
def means_of(model: Any, interventions: Sequence[Intervention], tokens: Tensor | None) -> Means:
    """Measure the means that the edits ``mean`` and ``mlp-mean`` put in the place of an output.

    Over all positions of at most 256 of the `tokens` (C, T), evenly spread.
    """
    wanted = {
        (block, edit)
        for each in interventions
        for block, edit in each.edits.items()
        if edit in ("mean", "mlp-mean")
    }
    if not wanted or tokens is None:
        return {}
    rows = tokens[[i * len(tokens) // min(256, len(tokens)) for i in range(min(256, len(tokens)))]]
    blocks, outputs = parts(model), {key: [] for key in wanted}
    with ExitStack() as stack:
        for block, edit in wanted:
            module = blocks[block].mlp if edit == "mlp-mean" else blocks[block].output
            keep = outputs[block, edit].append
            hook = module.register_forward_hook(  # type: ignore[union-attr]
                lambda _m, _a, y, keep=keep: keep(y.flatten(0, -2).double().mean(0))
            )
            stack.callback(hook.remove)
        for row in rows:
            model(input_ids=row[None].to(model.device), use_cache=False)
    return {key: torch.stack(each).mean(0) for key, each in outputs.items()}


@torch.inference_mode()
def states_of(model: Any, tokens: Tensor, intervention: Intervention) -> tuple[Tensor, Tensor]:
    """The states after each block, (blocks, N, T, D), and the logits, (N, T, V), by hooks alone."""
    seen: list[Tensor] = []

    def keep(_module: Any, _args: Any, returned: Any) -> None:
        seen.append((returned[0] if isinstance(returned, tuple) else returned).clone())

    with bypassed(model, intervention), ExitStack() as stack:
        for part in parts(model):
            stack.callback(part.block.register_forward_hook(keep).remove)
        logits = model(tokens, use_cache=False).logits
    return torch.stack(seen), logits


# --------------------------------------------------------------------------- memorization


def complete(
    model: Any,
    tokens: Tensor,
    suffix_length: int,
    interventions: Sequence[Intervention],
    batch_size: int,
    *,
    calibration_tokens: Tensor | None = None,
    edited: Edited = bypassed,
) -> Completions:
    """What the model does with each sample's suffix, by the plain loop.

    Per intervention and batch: one teacher-forced forward, one greedy `generate` with a KV cache.
    The minimum and the maximum number of new tokens are both S, as in the paper's code, so the
    end-of-text tokens of `model.generation_config` are never chosen and cannot end a continuation;
    in everything teacher-forced they stay in the vocabulary.

    Arguments and results are as the engine's; `edited` carries out an intervention.
    """
    calibration_tokens = tokens if calibration_tokens is None else calibration_tokens
    means = means_of(model, interventions, calibration_tokens)
    rows = []
    for intervention in interventions:
        made = []
        with edited(model, intervention, means), torch.inference_mode():
            for some in tokens.split(batch_size):
                batch = some.to(model.device)
                forced = _teacher_forced(model, batch, suffix_length)
                greedy = _greedy(model, batch[:, :-suffix_length], suffix_length)
                made.append([x.cpu() for x in (*greedy, *forced)])
        rows.append([torch.cat(each) for each in zip(*made, strict=True)])
    continuation, margin, *forced = (torch.stack(each) for each in zip(*rows, strict=True))
    return Completions(continuation, margin, *forced)


def _teacher_forced(model: Any, batch: Tensor, suffix_length: int) -> tuple[Tensor, ...]:
    """As the last fields of `Completions`, (B, S) each: all that is said of the suffix, as read."""
    # The row at position t predicts token t+1: rows P-1 to P+S-2 predict the suffix (Eq. 5), and
    # they are the last S of a forward without the last token.
    output = model(input_ids=batch[:, :-1], use_cache=False, logits_to_keep=suffix_length)
    logits = output.logits.float()  # (B, S, vocabulary)
    suffix = batch[:, -suffix_length:, None]
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    deviation = (log_probs + entropy[..., None]).double().square()
    spread = (log_probs.double().exp() * deviation).sum(-1).sqrt().to(entropy.dtype)
    kept = TopKLogitsWarper(40)(batch, logits.flatten(0, 1)).view_as(logits).log_softmax(-1)
    rank = 1 + (logits > logits.gather(-1, suffix)).sum(-1)
    chosen = (each.gather(-1, suffix)[..., 0] for each in (log_probs, kept))
    return logits.argmax(-1), entropy, *chosen, rank.int(), spread


def _greedy(model: Any, prefix: Tensor, suffix_length: int) -> tuple[Tensor, Tensor]:
    """The continuation (B, S) and its smallest margin (B,)."""
    stop = model.generation_config.eos_token_id
    never = torch.tensor([] if stop is None else stop, dtype=torch.long, device=prefix.device)
    output = model.generate(
        prefix,
        attention_mask=torch.ones_like(prefix),
        min_new_tokens=suffix_length,
        max_new_tokens=suffix_length,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,  # it is never used: no row ends early
        output_logits=True,
        return_dict_in_generate=True,
    )
    margins = []
    for logits in output.logits:  # S of them, (B, vocabulary)
        best, second = logits.float().index_fill(-1, never, -torch.inf).topk(2).values.unbind(-1)
        margins.append(best - second)
    return output.sequences[:, -suffix_length:], torch.stack(margins).amin(0)


# --------------------------------------------------------------------------- benchmarks


def score(
    model: Any,
    requests: Sequence[Request],
    interventions: Sequence[Intervention],
    batch_size: int,
    max_length: int | None = None,
    *,
    calibration_tokens: Tensor | None = None,
    edited: Edited = bypassed,
) -> Likelihoods:
    """The log-likelihood of each continuation given its context, by the plain loop.

    As lm-eval does it: what is longer than the model's context loses tokens on the left, and
    padding stands on the right. Each request has a row of its own. Arguments and results are as the
    engine's; `edited` carries out an intervention.

    Source: HFLM._loglikelihood_tokens of lm-eval 0.4.13; sums in float64, there float32.
    """
    means = means_of(model, interventions, calibration_tokens)
    limit = max_length or model.config.max_position_embeddings
    rows = [torch.tensor([*each[0], *each[1]][-limit - 1 :]) for each in requests]
    log_prob = torch.zeros(len(interventions), len(requests), dtype=torch.float64)
    is_greedy = torch.ones(len(interventions), len(requests), dtype=torch.bool)
    for v, intervention in enumerate(interventions):
        with edited(model, intervention, means), torch.inference_mode():
            for start in range(0, len(rows), batch_size):
                some = rows[start : start + batch_size]
                # the last token is predicted, never read
                read = nn.utils.rnn.pad_sequence([row[:-1] for row in some], batch_first=True)
                output = model(input_ids=read.to(model.device), use_cache=False)
                for r, (row, logits) in enumerate(zip(some, output.logits, strict=True), start):
                    target = row[-len(requests[r][1]) :]
                    said = logits[: len(row) - 1][-len(target) :].float().cpu()
                    chosen = said.log_softmax(-1).gather(-1, target[:, None])
                    log_prob[v, r] = chosen.double().sum()
                    is_greedy[v, r] = torch.equal(said.argmax(-1), target)
    return Likelihoods(log_prob=log_prob, is_greedy=is_greedy)
