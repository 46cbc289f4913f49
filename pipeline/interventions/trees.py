"""Requests that share a context become one row: the context, then a tree of continuations.

A token of a continuation attends to the context and to its own ancestors, so each continuation is
read as if it stood there alone::

    the cat sat ─┬─ on ── the ─┬─ mat        four choices: "on the mat", "on the roof",
                 │             └─ roof       "under it", "up"; the last token of each is
                 ├─ under ── it              predicted, never read
                 └─ up

Shapes: B rows, T positions, K wanted positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.interventions.evaluation import Request
from pipeline.interventions.wavefront import Sheet


@dataclass(frozen=True)
class Read:
    """One prediction that a request asks for: at `index` of its row, of `target`."""

    request: int
    index: int
    target: int


@dataclass(frozen=True)
class Tree:
    """A row.

    Args:
        tokens: T of them; the context comes first.
        parents: index of the token before each; -1 for the first.
        reads: the predictions asked for.
    """

    tokens: list[int]
    parents: list[int]
    reads: list[Read]

    @property
    def branching(self) -> bool:
        """Whether any token is not the successor of the one beside it."""
        return any(parent != i - 1 for i, parent in enumerate(self.parents))


def trees(requests: Sequence[Request], max_length: int, width: int) -> list[Tree]:
    """Rows for all requests: first those that branch, then the others, the longest first.

    Requests that share a context share a row where that is less work. What is longer than
    `max_length` loses tokens on the left, as in lm-eval.

    Args:
        requests: contexts and continuations, token ids.
        max_length: positions that the model may see.
        width: D of the model; the wider it is, the more a shared token is worth.
    """
    sharing: dict[tuple[int, ...], list[int]] = {}
    for number, (context, continuation) in enumerate(requests):
        lost = max(0, len(context) + len(continuation) - (max_length + 1))
        sharing.setdefault(tuple(context[lost:]), []).append(number)
    grown: list[Tree] = []
    for context, numbers in sharing.items():
        together = [_grow(context, numbers, requests)]
        alone = [_grow(context, [number], requests) for number in numbers]
        grown += min(together, alone, key=lambda rows: sum(_work(row, width) for row in rows))
    return sorted(grown, key=lambda tree: (not tree.branching, -len(tree.tokens)))


def _work(row: Tree, width: int) -> float:
    """About how much work a row is, in multiples of D multiplications.

    A token takes 12 D of them; a pair of tokens two in attention, and about as long again for the
    softmax. All pairs up to the diagonal are computed, under a tree's mask too.
    """
    length = len(row.tokens)
    return 12 * width * length + 2 * length**2


def _grow(context: tuple[int, ...], numbers: list[int], requests: Sequence[Request]) -> Tree:
    tree = Tree(list(context), list(range(-1, len(context) - 1)), [])
    child: dict[tuple[int, int], int] = {}
    for number in numbers:
        at = len(context) - 1
        *read, last = requests[number][1]
        for token in read:
            tree.reads.append(Read(number, at, token))
            if (at, token) not in child:
                child[at, token] = len(tree.tokens)
                tree.tokens.append(token)
                tree.parents.append(at)
            at = child[at, token]
        tree.reads.append(Read(number, at, last))
    return tree


def sheet(rows: Sequence[Tree], device: torch.device) -> tuple[Sheet, Tensor]:
    """The rows as one sheet, padded on the right, and where their reads are.

    Args:
        rows: all branching, or none.
        device: where to put it.

    Returns:
        The sheet, and (2, number of reads) int64 with the row and the index into the K wanted
        positions of each read, row by row, in the order of their `reads`.
    """
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(row.tokens) for row in rows], True, 0)
    length = tokens.shape[1]
    wanted = [sorted({read.index for read in row.reads}) for row in rows]
    places = [{index: k for k, index in enumerate(each)} for each in wanted]
    reads = [
        (b, place[read.index])
        for b, (row, place) in enumerate(zip(rows, places, strict=True))
        for read in row.reads
    ]
    positions, visible = torch.arange(length), None
    if rows[0].branching:
        visible = torch.stack([_visible(row, length) for row in rows])
        positions = visible.sum(-1) - 1  # as many as a token's ancestors
        visible = visible.to(device)
    padded = nn.utils.rnn.pad_sequence([torch.tensor(each) for each in wanted], True, 0)
    made = Sheet(tokens.to(device), positions.to(device), padded.to(device), 0, visible)
    return made, torch.tensor(reads, device=device).T


def _visible(row: Tree, length: int) -> Tensor:
    """(T, T) bool: each token attends to itself and its ancestors; padding to itself alone."""
    visible = torch.eye(length, dtype=torch.bool)
    for token, parent in enumerate(row.parents):
        if parent >= 0:
            visible[token] |= visible[parent]
    return visible
