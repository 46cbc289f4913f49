"""Identity attention as transformers lets anyone write attention: by a registered function.

No hook is involved. The function computes attention by hand, with a matrix of weights, and puts the
identity matrix in its place in the edited blocks and heads. It serves the families whose attention
goes through transformers' AttentionInterface.

Shapes: B batch, H heads, Q queries, T keys, E size of a head.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from pipeline.interventions.interventions import Intervention

NAME = "explicit_identity"


@contextmanager
def identity_weights(
    model: Any, intervention: Intervention, _means: Mapping[Any, Tensor] | None = None
) -> Iterator[Any]:
    """Give the edited blocks or heads a matrix of ones and zeros as attention weights.

    The edits are `identity` and `heads` alone, and all blocks of the model must call the function.
    """
    assert set(intervention.edits.values()) <= {"identity", "heads"}
    called = set()

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        block, heads = module.layer_idx, query.shape[1]
        called.add(block)
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        if mask is not None:
            scores = scores + mask[..., : key.shape[-2]]
        weights = scores.float().softmax(-1).to(query.dtype)  # (B, H, Q, T)
        if block in intervention.edits:
            itself = torch.eye(weights.shape[-1])[-weights.shape[-2] :]  # a cached step's last rows
            chosen = torch.zeros(heads, 1, 1, dtype=torch.bool)
            chosen[list(intervention.heads or range(heads))] = True
            weights = torch.where(chosen, itself.to(weights), weights)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attend)
    # without a mask function of the same name transformers would drop the causal mask
    AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)
    try:
        yield model
    finally:
        model.set_attn_implementation(before)
    assert called == set(range(model.config.num_hidden_layers))
