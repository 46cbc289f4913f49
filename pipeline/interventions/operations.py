"""What the operations of `interventions.OPERATIONS` do, a function each.

An operation says what a block's output projection receives in place of the mixture that attention
would make. It sees the values of the same positions, and so needs no queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from pipeline.interventions.interventions import IDENTITY


def identity_attention(values: Tensor) -> Tensor:
    """Every position attends to itself alone: the values (…, H, D/H) pass through unmixed.

    Source: arXiv 2501.05078, section 3.2.
    """
    return values


IN_PLACE_OF_ATTENTION: Mapping[str, Callable[[Tensor], Tensor]] = {
    IDENTITY: identity_attention,
}
"""Operation -> what the output projection receives, (…, H, D/H), from the values (…, H, D/H)."""
