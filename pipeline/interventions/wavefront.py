"""One teacher-forced pass of a stock model for all interventions at once.

Interventions that agree on the first blocks share them. The pass goes through the blocks once, with
a growing batch: where interventions branch, the rows of a branch are appended a second time::

    block               0       1       2       3
    baseline        ────●───────●───────●───────●────   ● the block as it is
    block-03            │       │       └───────○────   ○ the block edited
    block-02            │       └───────○───────●────
    block-01            └───────○───────●───────●────
    block-00        ────○───────●───────●───────●────

    Each is drawn from where it begins: block-02 has no rows of its own before block 2.

The model computes with its own modules. Hooks on them only append rows before a block, and apply
the edits to the rows that have them. A sweep over L blocks thus takes about L²/2 evaluations of a
block, not L².

Shapes: B rows of tokens, T positions, G branches, D width. Row b of branch g is row g B + b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from pipeline.interventions.caches import Kept
from pipeline.interventions.edits import MEAN, Source, rule_of, site_of
from pipeline.interventions.hooks import Beside, BlockRows, Means, Selection, hooked
from pipeline.interventions.interventions import Edit, Intervention
from pipeline.interventions.memory import Journal
from pipeline.interventions.memory import token_budget as free_tokens
from pipeline.interventions.readout import Readout, read
from pipeline.interventions.sources import Places, others_of, recording
from pipeline.interventions.trie import Trie, build_trie
from pipeline.models.context import stated_length
from pipeline.models.precision import at_least_single
from pipeline.models.sites import BLOCK, Anatomy, masked_call

Observer = Callable[[int, Tensor], None]
"""Called after each block with its number b and the states after it, (G, B, T, D).

Intervention v is in branch ``trie.carrier[b + 1][v]``. The states are the pass's own memory and
will be overwritten: read or copy them at once.
"""

CALIBRATION_ROWS, _ROWS_AT_ONCE = 256, 16


@dataclass(frozen=True)
class Engine:
    """A model, and the interventions that a pass computes together.

    Args:
        known: of the model.
        interventions: V of them.
        means: for edits that need them.
        journal: records what happens.
        token_budget: tokens at a time, counted once per branch; None: computed from the free
            memory.
        in_single: whether a model in half precision computes in float32.
        sources: source of a patch -> its model.
        never: (E,) int64, ids that are never generated.
    """

    known: Anatomy
    interventions: Sequence[Intervention]
    means: Means = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    token_budget: int | None = None
    in_single: bool = False
    sources: Mapping[Source, Anatomy] = field(default_factory=dict)
    never: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @cached_property
    def places(self) -> Places:
        """The blocks and sites whose values the patches of each source put in."""
        places: Places = {}
        for one in self.interventions:
            for block, edit in one.placed if self.sources else ():
                if source := rule_of(edit.name).source:
                    of = places.setdefault(source, (self.sources[source], set()))
                    of[1].add((block, site_of(edit)))
        return places

    @cached_property
    def trie(self) -> Trie:
        """Of the interventions."""
        return build_trie(self.interventions, len(self.known.sites))

    @property
    def ends(self) -> Tensor:
        """(V,) int64, the branch that each intervention ends in."""
        return torch.tensor(self.trie.carrier[-1])

    @property
    def device(self) -> torch.device:
        """The model's."""
        device: torch.device = self.known.model.device
        return device

    @property
    def in_half(self) -> bool:
        """Whether it computes in half precision."""
        return not self.in_single and torch.finfo(self.known.model.dtype).bits < 32

    @property
    def models(self) -> list[PreTrainedModel]:
        """The model, and those that patches read."""
        return [self.known.model, *(each.model for each in self.sources.values())]

    def only(self, listed: Iterable[int]) -> Engine:
        """The same with some of the interventions."""
        return replace(self, interventions=[self.interventions[v] for v in listed])

    def single(self, listed: Iterable[int]) -> Engine:
        """Some of the interventions in float32, for use within `at_least_single` of `models`."""
        half = self.token_budget and max(1, self.token_budget // 2)
        return replace(self.only(listed), in_single=True, token_budget=half)

    def budget(self, length: int, *, caching: bool) -> int:
        """Tokens of a pass over rows of this length, see `memory.token_budget`."""
        return self.token_budget or free_tokens(
            self.known,
            self.trie,
            length,
            caching=caching,
            in_single=self.in_single,
            recorded=sum(len(of) for _, of in self.places.values()),
        )


def run(
    engine: Engine,
    tokens: Tensor,
    *,
    cache: DynamicCache | None = None,
    mask: Tensor | None = None,
    observer: Observer | None = None,
    last: int | None = None,
    start: int | Tensor = 0,
) -> Tensor:
    """Read the tokens under all interventions.

    Args:
        engine: the model and the interventions.
        tokens: (B, T) int64, on the model's device.
        cache: receives the keys and values of all branches, or holds those of earlier tokens.
        mask: (B, T plus the length of the cache) int64, 0 at padding, which is on the left; None:
            no padding.
        observer: called after each block.
        last: the number of final positions that are needed; None: all. The values at other
            positions are undefined.
        start: the first position of the suffix, (B,) or one for all rows.

    Returns:
        (G, B, T, D), the input of the head.
    """
    known, batch = engine.known, len(tokens)
    blocks = rows_of(engine.trie, batch, tokens.device)
    blocks[-1].last = last if last != tokens.shape[1] else None
    call: dict[str, Tensor] = {}
    if mask is not None and not mask.all():
        call = masked_call(known.body, mask, tokens.shape[1])

    def observe(place: tuple[int, str], states: Tensor) -> None:
        if observer is not None:
            observer(place[0], torch.unflatten(states, 0, (-1, batch)))

    observed = [] if observer is None else [(block, BLOCK) for block in range(len(blocks))]
    kept = cache.others if isinstance(cache, Kept) else None
    others = others_of(engine.places, tokens, call, kept)
    beside = Beside(engine.means, start, others)
    with hooked(known, blocks, batch, beside), recording(known, observed, observe):
        states = known.body(
            input_ids=tokens, past_key_values=cache, use_cache=cache is not None, **call
        )[0]
    return torch.unflatten(states, 0, (engine.trie.branches, batch))


def teacher_forced(
    engine: Engine,
    tokens: Tensor,
    length: int,
    *,
    cache: DynamicCache | None = None,
    observer: Observer | None = None,
) -> Readout:
    """Read prefix and suffix under all interventions; the readout (G, B, S) of the suffix.

    Args:
        engine: the model and the interventions.
        tokens: (B, P+S) int64, on the model's device.
        length: S.
        cache: as for `run`.
        observer: called after each block with the states of all positions.
    """
    last = length if observer is None else None
    start = tokens.shape[1] - length
    states = run(engine, tokens[:, :-1], cache=cache, observer=observer, last=last, start=start)
    shape = engine.trie.branches, len(tokens), length
    targets = tokens[:, -length:].expand(shape).flatten()
    suffix = states[:, :, -length:].flatten(0, 2)
    return read(engine.known, suffix, targets, engine.never).view(*shape)


def rows_of(trie: Trie, batch: int, device: torch.device) -> list[BlockRows]:
    """For each block, the rows that a pass of `batch` rows of tokens appends and edits."""
    row = torch.arange(batch, device=device)
    made = []
    for step in trie.steps:
        parents = [parent * batch + row for parent in step.parents]
        edits = {
            edit: _selection(branches, batch, row) for edit, branches in by_edit(step.edits).items()
        }
        made.append(BlockRows(torch.cat(parents) if parents else None, edits))
    return made


def by_edit(edits: Iterable[Edit | None]) -> dict[Edit, list[int]]:
    """Edit -> the positions that have it, in the order of their first."""
    positions: dict[Edit, list[int]] = {}
    for position, edit in enumerate(edits):
        if edit is not None:
            positions.setdefault(edit, []).append(position)
    return positions


def _selection(branches: list[int], batch: int, row: Tensor) -> Selection:
    """The rows of some branches; adjacent branches as a slice, which copies nothing."""
    if branches[-1] - branches[0] == len(branches) - 1:
        return slice(branches[0] * batch, (branches[-1] + 1) * batch)
    return torch.cat([branch * batch + row for branch in branches])


def means_of(known: Anatomy, interventions: Sequence[Intervention], tokens: Tensor | None) -> Means:
    """The means of the values at the sites of edits that need them, over rows and positions.

    Of `tokens` (C, T) up to `CALIBRATION_ROWS`, evenly spread, are read, up to the model's context.
    The means are float64; the model computes in float32 at least.

    Raises:
        ValueError: a mean is needed, and there are no tokens.
    """
    edits = (placed for one in interventions for placed in one.placed)
    needed = {(block, site_of(edit)) for block, edit in edits if MEAN in rule_of(edit.name).needs}
    if not needed:
        return {}
    if tokens is None or not len(tokens):
        raise ValueError("an edit needs a mean over calibration tokens; pass some")
    count = min(CALIBRATION_ROWS, len(tokens))
    rows = tokens[torch.arange(count) * len(tokens) // count, : stated_length(known.model.config)]
    rows = rows.to(known.model.device)
    sums: dict[tuple[int, str], Tensor] = {}

    def add(key: tuple[int, str], values: Tensor) -> None:
        total = values.flatten(0, -2).double().sum(0)
        sums[key] = sums[key] + total if key in sums else total

    with at_least_single(known.model), recording(known, needed, add):
        for part in torch.split(rows, _ROWS_AT_ONCE):
            known.body(input_ids=part, use_cache=False)
    return {key: total / rows.numel() for key, total in sums.items()}
