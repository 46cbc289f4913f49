"""The trie of interventions: which interventions share a block, and where they branch.

Built from the interventions alone, without a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.interventions.interventions import Edit, Intervention
from pipeline.workflow.errors import InputError, Problem


@dataclass(frozen=True)
class Step:
    """The branching and the edits in one block.

    Args:
        parents: for each branch that begins in this block, the branch that it leaves. New branches
            are numbered after those that enter the block, in this order.
        edits: for each branch after the block, including those that begin here, the edit of the
            block; None if the block is unchanged.
    """

    parents: tuple[int, ...]
    edits: tuple[Edit | None, ...]


@dataclass(frozen=True)
class Trie:
    """A trie of interventions, spread out over the blocks.

    Args:
        steps: one per block.
        carrier: carrier[b][v] is the branch that carries intervention v into block b; carrier[L]
            is the branch that it ends in.
    """

    steps: tuple[Step, ...]
    carrier: tuple[tuple[int, ...], ...]

    @property
    def branches(self) -> int:
        """G, the branches after the last block."""
        return len(self.steps[-1].edits)

    @property
    def block_evaluations(self) -> int:
        """Evaluations of a block, summed over branches."""
        return sum(len(step.edits) for step in self.steps)

    def ending_in(self, branch: int) -> int:
        """The first intervention v that ends in `branch`; others in it have the same results."""
        return self.carrier[-1].index(branch)

    def path(self, branch: int) -> tuple[int, ...]:
        """The branch in each block, after its forks, of the interventions that end in `branch`."""
        v = self.ending_in(branch)
        return tuple(after[v] for after in self.carrier[1:])


def build_trie(interventions: Sequence[Intervention], n_blocks: int) -> Trie:
    """The trie of `interventions` on a model of L blocks.

    All begin in branch 0. In each block the interventions of a branch are split by their edit of
    that block; those without an edit of it, if any, stay in the branch.

    Raises:
        InputError: no interventions, or a block that the model does not have.
    """
    problems = [
        Problem(
            what=f"intervention {intervention.name}",
            got=f"block {block}",
            expected=f"blocks 0 to {n_blocks - 1}",
            remedy=f"choose interventions for a model of {n_blocks} blocks",
        )
        for intervention in interventions
        for block in intervention.blocks
        if block >= n_blocks
    ]
    if not interventions:
        problems.append(
            Problem(
                what="the interventions",
                got="none",
                expected="at least one, such as the baseline",
                remedy="pass interventions.sweep(n_blocks)",
            )
        )
    if problems:
        raise InputError(*problems)
    carrier = [(0,) * len(interventions)]
    steps = []
    for block in range(n_blocks):
        wanted = [
            (branch, one.at(block)) for branch, one in zip(carrier[-1], interventions, strict=True)
        ]
        parts = sorted(
            dict.fromkeys(wanted), key=lambda part: (part[0], part[1] is not None, str(part[1]))
        )
        stay: dict[int, tuple[int, Edit | None]] = {}  # the first part of each branch
        begun = [part for part in parts if stay.setdefault(part[0], part) is not part]
        branches = {part: branch for branch, part in enumerate((*stay.values(), *begun))}
        parents = tuple(parent for parent, _ in begun)
        steps.append(Step(parents, tuple(edit for _, edit in branches)))
        carrier.append(tuple(branches[part] for part in wanted))
    return Trie(tuple(steps), tuple(carrier))
