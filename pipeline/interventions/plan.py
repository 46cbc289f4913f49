"""The plan of a wavefront: which interventions share which block, and where they part.

Made from the interventions alone, without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.interventions.interventions import Intervention
from pipeline.errors import InputError, Problem


@dataclass(frozen=True)
class Fork:
    """A branch that begins in a block: `child` leaves `parent` there, by `operation`."""

    parent: int
    child: int
    operation: str


@dataclass(frozen=True)
class Step:
    """What happens in one block.

    Args:
        operations: for each branch that enters the block, what is done to the block there; None
            where the block stays as it is.
        forks: the branches that begin here, in the order of their numbers.
    """

    operations: tuple[str | None, ...]
    forks: tuple[Fork, ...]


@dataclass(frozen=True)
class Stop:
    """One block on an intervention's path: the branch it arrives in, and what is done there."""

    branch: int
    operation: str | None


@dataclass(frozen=True)
class Plan:
    """A trie of interventions, spread out over the blocks.

    Args:
        steps: one a block.
        carrier: carrier[b][v] is the branch that carries intervention v into block b; carrier[L]
            is the branch that it ends in.
    """

    steps: tuple[Step, ...]
    carrier: tuple[tuple[int, ...], ...]

    @property
    def branches(self) -> int:
        """Branches alive after the last block."""
        return len(self.steps[-1].operations) + len(self.steps[-1].forks)

    def path(self, branch: int) -> tuple[Stop, ...]:
        """What becomes of the interventions that end in `branch`, block by block."""
        v = self.carrier[-1].index(branch)
        stops = []
        for block, step in enumerate(self.steps):
            before, after = self.carrier[block][v], self.carrier[block + 1][v]
            forked = {fork.child: fork.operation for fork in step.forks}
            operation = step.operations[before] if before == after else forked[after]
            stops.append(Stop(before, operation))
        return tuple(stops)

    @property
    def block_evaluations(self) -> int:
        """Evaluations of a whole block; a fork costs less than one and is not counted."""
        return sum(len(step.operations) for step in self.steps)


def plan(interventions: Sequence[Intervention], n_blocks: int) -> Plan:
    """The plan for `interventions` on a model of L blocks.

    All begin in branch 0. In each block the interventions of a branch part by what they do to
    that block; those that leave it as it is, if any, stay in the branch.

    Raises:
        InputError: no interventions, or a block that the model does not have.
    """
    _check(interventions, n_blocks)
    carrier = [tuple(0 for _ in interventions)]
    steps = []
    branches = 1
    for block in range(n_blocks):
        operations: list[str | None] = []
        forks: list[Fork] = []
        now = list(carrier[-1])
        for branch in range(branches):
            members = [v for v, where in enumerate(carrier[-1]) if where == branch]
            wanted = [interventions[v].edits.get(block) for v in members]
            stays, *leave = sorted(set(wanted), key=lambda name: (name is not None, name or ""))
            operations.append(stays)
            for operation in leave:
                fork = Fork(branch, branches + len(forks), str(operation))
                forks.append(fork)
                for v, name in zip(members, wanted, strict=True):
                    if name == operation:
                        now[v] = fork.child
        steps.append(Step(tuple(operations), tuple(forks)))
        carrier.append(tuple(now))
        branches += len(forks)
    return Plan(tuple(steps), tuple(carrier))


def _check(interventions: Sequence[Intervention], n_blocks: int) -> None:
    problems = [
        Problem(
            what=f"intervention {each.name}",
            got=f"block {block}",
            expected=f"blocks 0 to {n_blocks - 1}",
            remedy=f"plan the interventions for a model of {n_blocks} blocks",
        )
        for each in interventions
        for block in each.blocks
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
