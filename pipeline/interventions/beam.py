"""Rows that read on under interventions, each from any earlier row: what a beam search needs.

Shapes: B prefixes of P tokens, G branches, R rows, D width.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pipeline.interventions.caches import Kept, SideBySide
from pipeline.interventions.hooks import Beside, BlockRows, hooked
from pipeline.interventions.wavefront import Engine, by_edit, run


class Beam:
    """Prefixes that were read under all interventions, and the rows that continue them.

    At first there is a row for every branch and prefix; row g B + b has read prefix b in branch g.
    The prefixes (B, P) lie on the model's device; up to `room` tokens may be read after them.

    Attributes:
        states: (R, D), the input of the head after the last token of each row.
    """

    def __init__(self, engine: Engine, prefixes: Tensor, room: int) -> None:
        self.engine, trie, batch = engine, engine.trie, len(prefixes)
        kept = Kept()
        read = run(engine, prefixes, cache=kept, last=1, start=prefixes.shape[1])
        self.states = read[:, :, -1].flatten(0, 1)
        self._paths = [trie.path(g) for g in range(trie.branches) for _ in range(batch)]
        sample = torch.arange(batch, device=prefixes.device).repeat(trie.branches)
        self._rows = SideBySide()
        self._rows.position = prefixes.shape[1]
        for block, path in enumerate(zip(*self._paths, strict=True)):
            branch = torch.tensor(path, device=prefixes.device)
            both = kept.of_rows(block, trie, branch, sample)
            self._rows.buffers.append([F.pad(each, (0, 0, 0, room)) for each in both])

    def advance(self, parents: Tensor, tokens: Tensor) -> None:
        """Replace the rows by continuations of some of them, one token longer.

        A new row continues one of `parents` (R',), which may repeat, by one of `tokens` (R',).
        """
        engine, rows = self.engine, self._rows
        self._paths = [self._paths[parent] for parent in parents.tolist()]
        rows.active = len(parents)
        blocks = []
        for block, step in enumerate(engine.trie.steps):
            rows.buffers[block] = [each[parents] for each in rows.buffers[block]]
            blocks.append(BlockRows())
            for edit, of in by_edit(step.edits[path[block]] for path in self._paths).items():
                blocks[block].edits[edit] = torch.tensor(of, device=tokens.device)
        with hooked(engine.known, blocks, beside=Beside(engine.means)):
            read = engine.known.body(
                input_ids=tokens[:, None], past_key_values=rows, use_cache=True
            )
        self.states = read[0][:, 0]
        rows.position += 1
