"""Interventions: what is done to which blocks of a model. Data, not classes.

An intervention maps blocks (0-based) to the name of an operation. The operations are functions
elsewhere; here are only their names, so that a plan of work can be made without a model.

Source: arXiv 2501.05078, section 3.2 (one block at a time) and A.3.2 (quartiles).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

IDENTITY_ATTENTION = "identity_attention"
"""Attention weights become the identity in every head: position t attends to itself alone.

The value and output projections still run, so the attention output at t is
``out_proj(v_proj(ln(x)))[t]``. The paper says "short-circuiting", we say "bypass".
"""

OPERATIONS = (IDENTITY_ATTENTION,)

QUARTILES = 4


@dataclass(frozen=True)
class Intervention:
    """A name and the operation of each affected block.

    Args:
        name: ``baseline``, ``block-00``, …, ``quartile-1``, …
        operations: block (0-based) -> operation, one of `OPERATIONS`; empty for the baseline.

    Raises:
        ValueError: a negative block, or an operation that does not exist.
    """

    name: str
    operations: Mapping[int, str]

    def __post_init__(self) -> None:
        for block, operation in self.operations.items():
            if block < 0:
                raise ValueError(f"{self.name}: block {block} is negative; blocks start at 0")
            if operation not in OPERATIONS:
                raise ValueError(f"{self.name}: no operation {operation!r}; there are {OPERATIONS}")
        # a read-only view of a sorted copy: two equal interventions compare equal and stay so
        object.__setattr__(
            self, "operations", MappingProxyType(dict(sorted(self.operations.items())))
        )

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.operations.items())))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The affected blocks, ascending."""
        return tuple(self.operations)


BASELINE = Intervention("baseline", {})


def bypass(name: str, blocks: range | tuple[int, ...]) -> Intervention:
    """The intervention `name` that gives each of `blocks` identity attention."""
    return Intervention(name, dict.fromkeys(blocks, IDENTITY_ATTENTION))


def block_name(block: int) -> str:
    """``block-07`` for block 7."""
    return f"block-{block:02d}"


def quartile_blocks(quartile: int, n_blocks: int) -> range:
    """The blocks of quartile q of L blocks: floor((q-1)L/4) to floor(qL/4)-1, 0-based.

    Raises:
        ValueError: `quartile` is not 1 to 4, or there are fewer than four blocks.
    """
    if quartile not in range(1, QUARTILES + 1):
        raise ValueError(f"quartile {quartile}: expected 1 to {QUARTILES}")
    if n_blocks < QUARTILES:
        raise ValueError(f"{n_blocks} blocks have no quartiles; at least {QUARTILES} are needed")
    return range((quartile - 1) * n_blocks // QUARTILES, quartile * n_blocks // QUARTILES)


def sweep(n_blocks: int) -> tuple[Intervention, ...]:
    """All interventions of a model: the baseline, each block alone, each quartile of blocks.

    Args:
        n_blocks: L, at least 1. Below four there are no quartiles.

    Returns:
        1 + L + 4 interventions (1 + L where L < 4), in that order.

    Source: section 3.2 and A.3.2 of the paper.
    """
    if n_blocks < 1:
        raise ValueError(f"{n_blocks} blocks; a model has at least one")
    singles = tuple(bypass(block_name(b), (b,)) for b in range(n_blocks))
    quartiles = (
        tuple(
            bypass(f"quartile-{q}", quartile_blocks(q, n_blocks)) for q in range(1, QUARTILES + 1)
        )
        if n_blocks >= QUARTILES
        else ()
    )
    return (BASELINE, *singles, *quartiles)
