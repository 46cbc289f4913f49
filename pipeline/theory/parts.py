"""The parts of a block by name, in the families that the theory covers, and what they compute.

Each part is a module of the stock model, or of a copy of one block in another precision. Stock
modules with fast attention do not expose the weights; here they are computed explicitly.

Shapes: B samples, T positions, n positions that the last token sees, D width, H heads, E = D/H, F
width of the MLP.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

from pipeline.workflow.errors import bad_input

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""None is steeper than `theory.bounds.SLOPE`; a test checks that."""

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "gpt_neo": {
        "attention": "attn.attention",
        "attention_norm": "ln_1",
        "projections": "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj",
        "output": "attn.attention.out_proj",
        "mlp_norm": "ln_2",
        "mlp": "mlp",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    "gpt_neox": {
        "attention": "attention",
        "attention_norm": "input_layernorm",
        "projections": "attention.query_key_value",
        "output": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp": "mlp",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
}
"""The `model_type` of a transformers configuration -> part -> its paths in a block.

Source: transformers 5.23, models/gpt_neo/modeling_gpt_neo.py and models/gpt_neox/…
"""


class Attention(NamedTuple):
    """The attention of a block at the last Q of T positions.

    Args:
        normalized: (B, T, D), after the norm.
        values: (B, T, H, E).
        weights: (B, H, Q, T), each row sums to one.
    """

    normalized: Tensor
    values: Tensor
    weights: Tensor


class Vectors(NamedTuple):
    """The computation of a block at the last position, (B, D) each.

    Args:
        attended: the attention's output.
        read: what the MLP reads, u.
        mlp: what it makes of it, F(u).
        after: the block's output.
    """

    attended: Tensor
    read: Tensor
    mlp: Tensor
    after: Tensor


class LastToken(NamedTuple):
    """What the last token sees, and what a block makes of it, unmodified and bypassed.

    Args:
        normalized: (B, n, D), y of the positions that it sees; itself is the last.
        values: (B, n, H, E).
        weights: (B, H, n).
        plain: as it is.
        bypassed: with the identity for attention weights.
    """

    normalized: Tensor
    values: Tensor
    weights: Tensor
    plain: Vectors
    bypassed: Vectors


@dataclass(frozen=True)
class Parts:
    """One block.

    Args:
        attention_norm: before the attention.
        projections: to queries, keys and values, in one matrix or three. The rows of each matrix go
            head by head.
        output: attention output, (…, D) with the heads side by side, to (…, D).
        mlp_norm: before the MLP.
        mlp: (…, D) to (…, D), without its norm.
        up: the MLP's first matrix, (F, D).
        down: its last, (D, F).
        heads: H.
        scale: what scores are multiplied by.
        parallel: the MLP reads the block's input, as attention does ("parallel residual"), not
            the sum of input and attention.
        window: position t attends to t-window+1 … t; None: to all up to t.
        rotary: gives cosines and sines where positions are rotary.
    """

    attention_norm: nn.LayerNorm
    projections: tuple[nn.Linear, ...]
    output: nn.Linear
    mlp_norm: nn.LayerNorm
    mlp: nn.Module
    up: nn.Linear
    down: nn.Linear
    heads: int
    scale: float = 1.0
    parallel: bool = False
    window: int | None = None
    rotary: nn.Module | None = None

    def split(self, normalized: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of (B, T, D) at positions 0 to T-1, (B, H, T, E) each."""
        each = [
            torch.unflatten(matrix(normalized), -1, (self.heads, -1)) for matrix in self.projections
        ]
        query, key, value = torch.cat(each, -1).transpose(1, 2).chunk(3, -1)
        if self.rotary is not None:
            position = torch.arange(normalized.shape[1], device=normalized.device)[None]
            turns = self.rotary(normalized.float(), position)  # float32 whatever the precision
            turns = tuple(each.to(query) for each in turns)
            query, key = apply_rotary_pos_emb(query, key, *turns)  # type: ignore[no-untyped-call]
        return query, key, value

    def value_matrices(self) -> Tensor:
        """W_V (H, E, D): the rows that make each head's values."""
        each = [torch.unflatten(matrix.weight, 0, (self.heads, -1)) for matrix in self.projections]
        return torch.cat(each, 1).chunk(3, 1)[2]

    def output_matrices(self) -> Tensor:
        """W_O (H, D, E): the columns of the output projection that read each head."""
        return torch.unflatten(self.output.weight, 1, (self.heads, -1)).transpose(0, 1)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The MLP of x (…, D), with its norm, without the residual."""
        made: Tensor = self.mlp(self.mlp_norm(x))
        return made

    def attend(self, states: Tensor, queries: int) -> Attention:
        """The attention at the last Q positions of states (B, T, D), in their precision."""
        normalized = self.attention_norm(states)
        query, key, values = self.split(normalized)
        length = states.shape[1]
        scores = (query[:, :, length - queries :] @ key.mT) * self.scale
        position = torch.arange(length, device=states.device)
        distance = position[length - queries :, None] - position
        hidden = (distance < 0) | (distance >= (length if self.window is None else self.window))
        weights = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
        return Attention(normalized, values.transpose(1, 2), weights)

    def mixed(self, attention: Attention) -> Tensor:
        """The attention's output (B, Q, D)."""
        context = torch.einsum("bhqi,bihe->bqhe", attention.weights, attention.values)
        attended: Tensor = self.output(context.flatten(2))
        return attended

    def last_token(self, states: Tensor) -> LastToken:
        """The last position of states (B, T, D) that enter the block, in their precision."""
        normalized, values, weights = attention = self.attend(states, 1)
        length = states.shape[1]
        first = 0 if self.window is None else max(0, length - self.window)
        hidden = states[:, -1]
        bypassed = self.output(values[:, -1].flatten(1))
        attended = torch.stack([self.mixed(attention)[:, 0], bypassed])
        read = hidden.expand_as(attended) if self.parallel else hidden + attended
        mlp = self.feed_forward(read)
        made = attended, read, mlp, hidden + attended + mlp
        seen = normalized[:, first:], values[:, first:], weights[:, :, 0, first:]
        return LastToken(*seen, *(Vectors(*each) for each in zip(*made, strict=True)))


class Described:
    """A model whose parts are known by name.

    Args:
        model: a causal language model of one of `FAMILIES`.

    Attributes:
        n_blocks: L.
        width: D.
        dtype: the model's precision, at least float32.

    Raises:
        InputError: another architecture or activation, with those that are supported.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        _require_known(model)
        self.model = model
        self.width = int(model.config.hidden_size)
        self.dtype = torch.promote_types(model.dtype, torch.float32)
        self._body: Any = model.base_model
        (self._blocks,) = (m for m in self._body.children() if isinstance(m, nn.ModuleList))
        self.n_blocks = len(self._blocks)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input of block 0, (B, T, D) in `dtype`, for tokens (B, T) at positions 0 to T-1."""
        embedded: Tensor = self._body.get_input_embeddings()(tokens).to(self.dtype)
        if positions := getattr(self._body, "wpe", None):
            position = torch.arange(tokens.shape[1], device=tokens.device)
            embedded = embedded + positions(position).to(self.dtype)
        return embedded

    def block(self, number: int, dtype: torch.dtype | None = None) -> Parts:
        """The parts of a block; in another precision than its own, those of a copy."""
        block: Any = self._blocks[number]
        if dtype and any(each.dtype != dtype for each in block.parameters()):
            block = copy.deepcopy(block).to(dtype)
        config = self.model.config
        modules = {
            part: tuple(map(block.get_submodule, paths.split()))
            for part, paths in FAMILIES[config.model_type].items()
        }
        (attention,) = modules.pop("attention")
        local = getattr(attention, "attention_type", "global") == "local"
        return Parts(
            projections=modules.pop("projections"),
            **{part: module for part, (module,) in modules.items()},
            heads=config.num_attention_heads,
            scale=getattr(attention, "scaling", 1.0),
            parallel=getattr(block, "use_parallel_residual", False),
            window=config.window_size if local else None,
            rotary=getattr(self._body, "rotary_emb", None),
        )


def _require_known(model: Any) -> None:
    config = model.config
    if config.model_type not in FAMILIES or model.get_output_embeddings() is None:
        raise bad_input(
            "the model's architecture",
            f"{config.model_type} ({type(model).__name__})",
            f"a causal language model, one of {', '.join(FAMILIES)}, for the theorems need its "
            "norms and matrices by name",
            "leave this model out of the theory, or add its family to pipeline/theory/parts.py",
        )
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation_function", None)
    if activation not in ACTIVATIONS:
        raise bad_input(
            "the model's activation",
            repr(activation),
            f"one of {', '.join(ACTIVATIONS)}, whose slope the bounds know",
            "leave this model out of the theory, or check the activation's slope against "
            "pipeline/theory/bounds.py and add it to pipeline/theory/parts.py",
        )
