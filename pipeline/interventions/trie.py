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
    _check(interventions, n_blocks)
    carrier = [tuple(0 for _ in interventions)]
    steps = []
    branches = 1
    for block in range(n_blocks):
        edits: list[Edit | None] = []
        begun: list[tuple[int, Edit]] = []
        now = list(carrier[-1])
        for branch in range(branches):
            members = [v for v, where in enumerate(carrier[-1]) if where == branch]
            wanted = [interventions[v].at(block) for v in members]
            stays, *leave = sorted(
                dict.fromkeys(wanted), key=lambda edit: (edit is not None, str(edit))
            )
            edits.append(stays)
            for edit in filter(None, leave):
                for v, other in zip(members, wanted, strict=True):
                    if other == edit:
                        now[v] = branches + len(begun)
                begun.append((branch, edit))
        parents = tuple(parent for parent, _ in begun)
        steps.append(Step(parents, (*edits, *(edit for _, edit in begun))))
        carrier.append(tuple(now))
        branches += len(begun)
    return Trie(tuple(steps), tuple(carrier))


def _check(interventions: Sequence[Intervention], n_blocks: int) -> None:
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
