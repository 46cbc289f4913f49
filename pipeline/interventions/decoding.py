"""Exact greedy continuations of all samples under all interventions, without `generate`.

While a model's choices agree with the true suffix, reading the suffix and generating it are the
same: up to and including its first wrong choice, the greedy continuation equals the choices of the
teacher-forced pass. A row (a sample under an intervention) without a wrong choice is done, and so
is one whose first wrong choice is the last token. Only the other rows decode, those of all
interventions together, each from its first wrong choice, on the keys and values of that pass::

    position      P    P+1  P+2  P+3  P+4  P+5
    the suffix    s    s    s    s    s    s
    row 0         s    s    s    s    s    s      right throughout: an exact match, done
    row 1         s    x ─▶ ● ─▶ ● ─▶ ● ─▶ ●      goes wrong, and reads what it wrote
    row 2         s    s    s    y ─▶ ● ─▶ ●      joins when row 1 has come as far

All active rows are at the same position, so a step needs no mask. They are the first of all rows,
sorted by when they join, so caches are never moved.

Shapes: n active rows, P prefix and S suffix positions, B samples, G branches.
"""

from bisect import bisect_left
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.interventions.caches import Kept, SideBySide
from pipeline.interventions.hooks import Beside, BlockRows, hooked
from pipeline.interventions.interventions import Edit
from pipeline.interventions.readout import Choice, choose
from pipeline.interventions.sources import Beneath
from pipeline.interventions.wavefront import Engine, by_edit


@dataclass(frozen=True)
class Start:
    """The points where rows begin to decode, sorted by `mismatch`.

    Args:
        branch: (n,) int64, the branch each row ends in.
        sample: (n,) int64, its sample within the batch.
        mismatch: (n,) int64, index into the suffix of its first wrong choice, ascending.
        tokens: (n, S) int64, its choices up to that one; the others are written.
    """

    branch: Tensor
    sample: Tensor
    mismatch: Tensor
    tokens: Tensor


def decode(engine: Engine, cache: Kept, start: Start, prefix_length: int) -> Choice:
    """Generate greedily from where the rows went wrong to the end of the suffix.

    Args:
        engine: the model and the interventions of the teacher-forced pass.
        cache: the keys and values of that pass, over the P + S - 1 positions that it read. It is
            emptied: a block's entries are freed once they are copied to the rows.
        start: n rows, at least one.
        prefix_length: P.

    Returns:
        The choices (n, S); up to index `mismatch` margins are infinite.
    """
    known, trie, tokens, device = engine.known, engine.trie, start.tokens, start.tokens.device
    suffix_length = tokens.shape[1]
    margins = torch.full(tokens.shape, torch.inf, device=device)
    joins = start.mismatch.tolist()
    paths = torch.tensor([trie.path(g) for g in range(trie.branches)], device=device)[start.branch]
    rows, blocks = SideBySide(), [BlockRows() for _ in trie.steps]
    edited: list[tuple[BlockRows, Edit, list[int], Tensor]] = []
    for number, (step, block) in enumerate(zip(trie.steps, blocks, strict=True)):
        branch = paths[:, number]
        # no room for the position after the last one that the pass read: it is only predicted
        rows.buffers.append(cache.of_rows(number, trie, branch, start.sample))
        for edit, listed in by_edit(step.edits[g] for g in branch.tolist()).items():
            block.edits[edit] = of_all = torch.tensor(listed, device=device)
            edited.append((block, edit, listed, of_all))
    beneath = Beneath(engine.places, cache, start.sample, prefix_length + suffix_length - 1)
    beside = Beside(engine.means)

    def editing(now: bool) -> AbstractContextManager[None]:
        return hooked(known, blocks, beside=beside) if now else nullcontext()

    patched = bool(engine.places)  # a source may be the model itself, which reads without edits
    with editing(not patched):
        for index in range(joins[0], suffix_length - 1):
            rows.active, rows.position = bisect_left(joins, index + 1), prefix_length + index
            for block, edit, listed, of_all in edited:
                block.edits[edit] = of_all[: bisect_left(listed, rows.active)]
            active = tokens[: rows.active]
            read = active[:, index, None]
            beside.others = beneath.others(read, rows.position)
            with editing(patched):
                states = known.body(input_ids=read, past_key_values=rows, use_cache=True)[0]
            choice = choose(known, states[:, 0], engine.never)
            active[:, index + 1] = choice.token
            margins[: rows.active, index + 1] = choice.margin
    return Choice(tokens, margins)
