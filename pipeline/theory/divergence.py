"""How a bypass changes the last token, block by block, and what bounds say about it.

The last token n is the last of the prefix, for two reasons. The paper speaks of the token that the
next one is predicted from, and its prompt is the prefix: there the model must have found the first
token of the memorized suffix. And a later token would read suffix tokens given to it, from which
the rest is often plain. The suffix is not read at all.

One pass a batch gives everything: each branch of the wavefront bypasses one block, and an observer
takes the norms of the changes and the bounds as the pass goes along; of its states only those of
the baseline and of the newest branch outlive a block.

Shapes: N samples, B of a batch, P prefix tokens, D width, L blocks.

Source: arXiv 2501.05078, section 3.3 and A.1. The paper prints bounds and measures none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.evaluation import Progress, require_completable, silent
from pipeline.interventions.interventions import sweep
from pipeline.interventions.memory import Journal, default_budget, in_batches
from pipeline.interventions.plan import Plan, plan
from pipeline.interventions.precision import not_finite
from pipeline.interventions.wavefront import Sheet, run
from pipeline.models.decoder import Decoder
from pipeline.models.families import adapt
from pipeline.samples.frame import check_samples
from pipeline.tables import DIVERGENCE_BLOCKS, DIVERGENCE_BOUNDS, DIVERGENCE_TRIANGLE, Schema
from pipeline.theory import linear_fit
from pipeline.theory.block_bounds import Known, know, one_block_on, right_after

_LOGIT_ROWS = 64
_BEST = torch.float64


class Divergence(NamedTuple):
    """What `measure` returns.

    Args:
        triangle: as `DIVERGENCE_TRIANGLE`, N x (L (L+1) / 2 + L) rows.
        bounds: as `DIVERGENCE_BOUNDS`, N x L rows.
        blocks: as `DIVERGENCE_BLOCKS`, L rows.
    """

    triangle: pl.DataFrame
    bounds: pl.DataFrame
    blocks: pl.DataFrame


def measure(
    model: PreTrainedModel,
    samples: pl.DataFrame,
    token_budget: int | None = None,
    progress: Progress = silent,
    journal: Journal | None = None,
) -> Divergence:
    """Bypass each block in turn, and compare what changes with what the theorems say.

    States are computed in the model's precision, at least float32; from them on, what is in the
    bounds table is computed in float64.

    Args:
        model: in evaluation mode, on any device.
        samples: as `tables.SAMPLES`, of any splits; one prefix and one suffix length.
        token_budget: tokens at a time, counted once a branch of the wavefront; it changes no
            result beyond rounding; None: from the memory that is free.
        progress: told after each batch.
        journal: is told of batches halved.

    Returns:
        Three tables; rows in the order of the samples, then of the blocks.

    Raises:
        InputError: what `memorization.measure` refuses, or states or logits that are not finite.
        ValueError: the model is in training mode.
    """
    check_samples(samples, model.config.vocab_size, model.config.max_position_embeddings)
    tokens = torch.tensor(samples["tokens"].to_list())
    require_completable(model, tokens, int(samples["suffix_length"][0]))
    prefixes = tokens[:, : int(samples["prefix_length"][0])]
    decoder = adapt(model)
    if decoder.dtype != _BEST:
        decoder = decoder.in_precision(torch.float32)
    n_blocks = len(decoder.blocks)
    trie = plan(sweep(n_blocks)[: 1 + n_blocks], n_blocks)
    # half, for the bounds: a few batches of states and a block's weights, in float64
    budget = token_budget or default_budget(decoder, trie, decoding=False) // 2

    def work(numbers: range) -> dict[str, Tensor]:
        sheet = Sheet.plain(prefixes[numbers.start : numbers.stop].to(decoder.device), last=1)
        watcher = _Watcher(decoder, precise, trie, sheet, known)
        run(decoder, sheet, trie, observer=watcher)
        found = watcher.found()
        _require_finite(decoder, sheet, found, samples["sample_id"][numbers.start :])
        progress(numbers.stop, len(prefixes))
        return {name: value.cpu() for name, value in found.items()}

    with torch.inference_mode():
        precise = decoder.in_precision(_BEST)
        fits = linear_fit.fit(decoder, prefixes, samples["sample_id"].to_list())
        known = [know(precise, number, both) for number, both in enumerate(fits)]
        costs = [prefixes.shape[1] * trie.branches] * len(prefixes)
        parts = in_batches(costs, budget, None, work, journal or Journal())
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return Divergence(
        _triangle(samples, whole, n_blocks),
        _bounds(samples, whole, n_blocks),
        _blocks(decoder, known),
    )


class _Watcher:
    """Looks at a pass block by block."""

    def __init__(
        self, decoder: Decoder, precise: Decoder, trie: Plan, sheet: Sheet, known: Sequence[Known]
    ) -> None:
        self.decoder = decoder
        self.precise = precise
        self.trie = trie
        self.known = known
        self.before = decoder.embed(sheet.tokens, sheet.positions).to(_BEST)
        self.bypassed: Tensor | None = None  # with a bypass of the block before
        self.triangle: list[Tensor] = []  # (bypassed blocks, B, 2), norm of change, and relative
        self.kl = torch.empty(0)  # (L, B), once the pass is over
        self.bounds: list[dict[str, Tensor]] = []
        self.next_bounds: list[dict[str, Tensor]] = []

    def __call__(self, number: int, states: Tensor) -> None:
        """See `wavefront.Observer`."""
        block = self.precise.block(number)
        parts = self.precise, block, self.known[number]
        look, row = right_after(*parts, self.before)
        self.bounds.append(row)
        if self.bypassed is not None:
            self.next_bounds.append(one_block_on(*parts, look, self.before, self.bypassed))

        # the branches of the baseline and of the bypasses of blocks 0 to `number`
        baseline, *bypasses = self.trie.carrier[number + 1][: number + 2]
        last = states[:, :, -1]
        self.triangle.append(_compare(last[baseline].to(_BEST), last[bypasses].to(_BEST)))
        if number == len(self.trie.steps) - 1:
            self._look_at_logits(last[[baseline, *bypasses]])
        else:
            self.before = states[baseline].to(_BEST)
            self.bypassed = states[bypasses[-1]].to(_BEST)

    def _look_at_logits(self, states: Tensor) -> None:
        """Of states (1 + L, B, D): the baseline, and the bypass of each block."""
        shape = len(states) - 1, states.shape[1]
        triangle = states.new_empty((*shape, 2), dtype=_BEST)
        self.kl = states.new_empty(shape, dtype=_BEST)
        for rows in torch.split(torch.arange(states.shape[1]), _LOGIT_ROWS):
            without = _centred(self.decoder.logits(states[0, rows]))
            log_probs = without.log_softmax(-1)
            for i, each in enumerate(states[1:]):  # one by one: logits are large
                logits = _centred(self.decoder.logits(each[rows]))
                triangle[i, rows] = _compare(without, logits)
                gaps = log_probs - logits.log_softmax(-1)
                self.kl[i, rows] = (log_probs.exp() * gaps).sum(-1).clamp_min(0)
        self.triangle.append(triangle)

    def found(self) -> dict[str, Tensor]:
        """All that was seen, a sample a row: (B, …) in float64, or bool."""
        rows = {
            name: torch.stack([row[name] for row in each], 1)
            for each in (self.bounds, self.next_bounds)
            if each
            for name in each[0]
        }
        change, relative = torch.cat(self.triangle).unbind(-1)
        triangle = {"triangle_change": change.T, "triangle_relative": relative.T}
        return rows | triangle | {"triangle_kl": self.kl.T}


def _compare(without: Tensor, bypassed: Tensor) -> Tensor:
    """Norm of the change, and the same relative to the baseline: (…, B, 2), of (…, B, D)."""
    change = (bypassed - without).norm(dim=-1)
    least = torch.finfo(_BEST).tiny  # of what is zero throughout, the change is too
    return torch.stack([change, change / without.norm(dim=-1).clamp_min(least)], -1)


def _centred(logits: Tensor) -> Tensor:
    """Logits (B, V) without their mean, on which no probability depends; float64."""
    logits = logits.to(_BEST)
    return logits - logits.mean(-1, keepdim=True)


def _require_finite(
    decoder: Decoder, sheet: Sheet, found: dict[str, Tensor], sample_ids: pl.Series
) -> None:
    """Raise for the first sample whose logits are not finite, saying where it began."""
    finite = found["triangle_kl"].isfinite()  # (B, L)
    if finite.all():
        return
    row = int(finite.all(1).logical_not().nonzero()[0])
    first = int(finite[row].logical_not().nonzero()[0])
    interventions = sweep(finite.shape[1])  # the baseline is the first
    guilty = interventions[1 + first] if finite[row].any() else interventions[0]
    alone = Sheet.plain(sheet.tokens[row : row + 1], last=1)
    raise not_finite(decoder, guilty, alone, f"sample {sample_ids[row]}")


def _triangle(samples: pl.DataFrame, found: dict[str, Tensor], n_blocks: int) -> pl.DataFrame:
    # a pass has them by the block after which is looked, the logits last
    pairs = [(block, after) for after in range(n_blocks) for block in range(after + 1)]
    pairs += [(block, n_blocks) for block in range(n_blocks)]
    order = sorted(range(len(pairs)), key=pairs.__getitem__)
    kl = torch.full_like(found["triangle_change"], torch.nan)
    kl[:, -n_blocks:] = found["triangle_kl"]
    values = {
        "change": found["triangle_change"],
        "relative": found["triangle_relative"],
        "kl": kl,
    }
    keys = pl.DataFrame([pairs[i] for i in order], schema=["block", "after"], orient="row")
    frame = _frame(samples, keys, {name: value[:, order] for name, value in values.items()})
    return _cast(frame.with_columns(pl.col("kl").fill_nan(None)), DIVERGENCE_TRIANGLE)


def _bounds(samples: pl.DataFrame, found: dict[str, Tensor], n_blocks: int) -> pl.DataFrame:
    values = {}
    following = [name for name in DIVERGENCE_BOUNDS if name.startswith("next_")]
    for name in DIVERGENCE_BOUNDS:
        if name in following:  # there is no next block after the last
            known = found.get(name, found["change"][:, :0])
            values[name] = torch.cat([known, known.new_zeros(len(known), 1)], 1)
        elif name in found:
            values[name] = found[name]
    keys = pl.DataFrame({"block": range(n_blocks)})
    frame = _frame(samples, keys, values)
    inner = pl.col("block") < n_blocks - 1
    nulls = [pl.when(inner).then(pl.col(name)).alias(name) for name in following]
    return _cast(frame.with_columns(nulls), DIVERGENCE_BOUNDS)


def _blocks(decoder: Decoder, known: Sequence[Known]) -> pl.DataFrame:
    rows = [
        {
            "block": number,
            "parallel": block.parallel,
            "window": block.window,
            "head_norms": float(each.norms.heads.sum()),
            "largest_head_norm": float(each.norms.heads.max()),
            "linear_norm": each.fits.stream.norm,
            "identity_plus": each.fits.stream.identity_plus,
            "r_squared": each.fits.stream.r_squared,
            "normalized_linear_norm": each.fits.normalized.norm,
            "normalized_r_squared": each.fits.normalized.r_squared,
            "fitted_tokens": each.fits.stream.tokens,
            "ridge": each.fits.stream.ridge,
            "up_norm": each.norms.up,
            "down_norm": each.norms.down,
        }
        for number, (block, each) in enumerate(zip(decoder.blocks, known, strict=True))
    ]
    return _cast(pl.DataFrame(rows), DIVERGENCE_BLOCKS)


def _frame(samples: pl.DataFrame, keys: pl.DataFrame, values: dict[str, Tensor]) -> pl.DataFrame:
    """Every sample with every row of `keys`, and beside them `values`, (N, keys) each."""
    # in a cross join the right side varies fastest: the order of a flattened (N, keys)
    rows = samples.select("sample_id", "split").join(keys, how="cross", maintain_order="left_right")
    return rows.with_columns(
        pl.Series(name, value.flatten().numpy()) for name, value in values.items()
    )


def _cast(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    return frame.select(pl.col(name).cast(column.dtype) for name, column in schema.items())
