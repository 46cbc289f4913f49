"""The parts of a block by name, in the families that the theory covers.

Each part is a module of the stock model, or of a copy of one block in another precision. A few
lines per family locate them.

Shapes: B samples, T positions, D width, H heads, E = D/H, F width of the MLP.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

from pipeline.workflow.errors import bad_input

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
"""None is steeper than `theory.bounds.SLOPE`; a test checks that."""


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
    scale: float
    parallel: bool
    window: int | None
    rotary: nn.Module | None

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


def _gpt_neox(body: Any, block: Any) -> Parts:
    """Source: transformers 5.23, models/gpt_neox/modeling_gpt_neox.py."""
    return Parts(
        attention_norm=block.input_layernorm,
        projections=(block.attention.query_key_value,),
        output=block.attention.dense,
        mlp_norm=block.post_attention_layernorm,
        mlp=block.mlp,
        up=block.mlp.dense_h_to_4h,
        down=block.mlp.dense_4h_to_h,
        heads=body.config.num_attention_heads,
        scale=block.attention.scaling,
        parallel=block.use_parallel_residual,
        window=None,
        rotary=body.rotary_emb,
    )


def _gpt_neo(body: Any, block: Any) -> Parts:
    """Source: transformers 5.23, models/gpt_neo/modeling_gpt_neo.py."""
    attention = block.attn.attention
    return Parts(
        attention_norm=block.ln_1,
        projections=(attention.q_proj, attention.k_proj, attention.v_proj),
        output=attention.out_proj,
        mlp_norm=block.ln_2,
        mlp=block.mlp,
        up=block.mlp.c_fc,
        down=block.mlp.c_proj,
        heads=body.config.num_heads,
        scale=1.0,
        parallel=False,
        window=body.config.window_size if attention.attention_type == "local" else None,
        rotary=None,
    )


class _Family(NamedTuple):
    """Where a body keeps blocks, the embeddings of tokens and positions, and a block's parts."""

    blocks: str
    embeddings: tuple[str, ...]
    parts: Callable[[Any, Any], Parts]


FAMILIES: Mapping[str, _Family] = {
    "gpt_neo": _Family("h", ("wte", "wpe"), _gpt_neo),
    "gpt_neox": _Family("layers", ("embed_in",), _gpt_neox),
}
"""The `model_type` of a transformers configuration -> where its parts are."""


class Described:
    """A model whose parts are known by name.

    Args:
        model: a causal language model of one of `FAMILIES`.

    Raises:
        InputError: another architecture or activation, with those that are supported.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        _require_known(model)
        self.model = model
        self._body: Any = model.base_model
        self._family = FAMILIES[model.config.model_type]
        self._blocks = getattr(self._body, self._family.blocks)

    @property
    def n_blocks(self) -> int:
        """L."""
        return len(self._blocks)

    @property
    def width(self) -> int:
        """D."""
        return int(self.model.config.hidden_size)

    @property
    def dtype(self) -> torch.dtype:
        """The model's precision, at least float32."""
        return torch.promote_types(self.model.dtype, torch.float32)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input of block 0, (B, T, D) in `dtype`, for tokens (B, T) at positions 0 to T-1."""
        position = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: list[Tensor] = [
            getattr(self._body, name)(read).to(self.dtype)
            for name, read in zip(self._family.embeddings, (tokens, position), strict=False)
        ]
        return embedded[0] + embedded[1] if embedded[1:] else embedded[0]

    def block(self, number: int, dtype: torch.dtype | None = None) -> Parts:
        """The parts of a block; in another precision than its own, those of a copy."""
        block = self._blocks[number]
        if dtype and any(each.dtype != dtype for each in block.parameters()):
            block = copy.deepcopy(block).to(dtype)
        return self._family.parts(self._body, block)


def _require_known(model: Any) -> None:
    config = model.config
    if config.model_type not in FAMILIES or model.get_output_embeddings() is None:
        raise bad_input(
            what="the model's architecture",
            got=f"{config.model_type} ({type(model).__name__})",
            expected=f"a causal language model, one of {', '.join(FAMILIES)}, for the theorems "
            "need its norms and matrices by name",
            remedy="leave this model out of the theory, or add its family to "
            "pipeline/theory/parts.py",
        )
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation_function", None)
    if activation not in ACTIVATIONS:
        raise bad_input(
            what="the model's activation",
            got=repr(activation),
            expected=f"one of {', '.join(ACTIVATIONS)}, whose slope the bounds know",
            remedy="leave this model out of the theory, or check the activation's slope "
            "against pipeline/theory/bounds.py and add it to pipeline/theory/parts.py",
        )
