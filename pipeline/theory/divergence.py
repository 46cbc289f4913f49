"""Measures how a bypass changes the last token, block by block, and compares it with the bounds.

The last token n is the last of the prefix, for two reasons. The paper's theorems are about the
token from which the next one is predicted, and its prompt is the prefix: there the model must
produce the first token of the memorized suffix. And a later token would read true suffix tokens,
from which the rest is often easy to predict. The suffix is not read at all.

One pass per batch gives all states: each branch of the wavefront bypasses one block. An observer
computes the norms of the changes during the pass, and keeps the input of the bounds: for each block
the states of the baseline and of the branch that bypasses it. The bounds follow, one block at a
time.

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
from pipeline.interventions.guard import require_length
from pipeline.interventions.interventions import sweep
from pipeline.interventions.memory import Journal, in_batches
from pipeline.interventions.overflow import not_finite
from pipeline.interventions.readout import pieces
from pipeline.interventions.trie import Trie
from pipeline.interventions.wavefront import Engine, run
from pipeline.models.context import context_length
from pipeline.models.precision import at_least_single
from pipeline.models.sites import Anatomy, anatomy
from pipeline.samples.frame import check_samples
from pipeline.theory import linear_fit
from pipeline.theory.block_bounds import Known, know, one_block_on, right_after
from pipeline.theory.columns import DIVERGENCE_BLOCKS, DIVERGENCE_BOUNDS, DIVERGENCE_TRIANGLE
from pipeline.theory.parts import Described
from pipeline.workflow.tables import cast, crossed

_LOGIT_ROWS = 64
_BEST = torch.float64


class Divergence(NamedTuple):
    """The result of `measure`.

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
    """Bypass each block in turn, and compare the changes with the theorems' bounds.

    States are computed in the model's precision, at least float32; the bounds table is computed
    from them in float64.

    Args:
        model: in evaluation mode, on any device.
        samples: as `SAMPLES`, of any splits; one prefix and one suffix length.
        token_budget: tokens at a time, counted once a branch of the wavefront; it changes no
            result beyond rounding; None: from the memory that is free.
        progress: called after each batch.
        journal: records halved batches.

    Returns:
        Three tables; rows in the order of the samples, then of the blocks.

    Raises:
        InputError: a model of another family, what `memorization.measure` refuses, or states or
            logits that are not finite.
        ValueError: the model is in training mode.
    """
    described = Described(model)
    check_samples(samples, model.config.vocab_size, context_length(model.config))
    tokens = torch.tensor(samples["tokens"].to_list())
    require_completable(model, tokens, int(samples["suffix_length"][0]))
    prefixes = tokens[:, : int(samples["prefix_length"][0])]
    known = anatomy(model)
    require_length(known, prefixes.shape[1])
    n_blocks = described.n_blocks
    in_single = described.dtype != model.dtype
    engine = Engine(known, sweep(n_blocks)[: 1 + n_blocks], in_single=in_single)
    most = engine.budget(prefixes.shape[1], caching=False)
    budget = token_budget or max(1, most // 2)  # half, since the bounds need memory too

    def work(numbers: range) -> dict[str, Tensor]:
        batch = prefixes[numbers.start : numbers.stop].to(model.device)
        seen = _Seen(engine.trie)
        with at_least_single(model):
            last = run(engine, batch, observer=seen)[engine.ends, :, -1]
            found = _of_logits(known, last)
            _require_finite(engine, batch, found["kl"], samples["sample_id"][numbers.start :])
        found |= _bounds_of(described, blocks, described.embed(batch), seen)
        found["triangle"] = torch.cat([*seen.triangle, found["triangle"]])
        progress(numbers.stop, len(prefixes))
        return {name: value.cpu() for name, value in found.items()}

    with torch.inference_mode():
        fits = linear_fit.fit(described, prefixes, samples["sample_id"].to_list())
        blocks = [know(described.block(i, _BEST), both) for i, both in enumerate(fits)]
        costs = [prefixes.shape[1] * engine.trie.branches] * len(prefixes)
        parts = in_batches(costs, budget, None, work, journal or Journal())
    whole = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
    return Divergence(
        _triangle(samples, whole, n_blocks),
        _bounds(samples, whole, n_blocks),
        _blocks(described, blocks),
    )


class _Seen:
    """An observer that collects the numbers of a pass, block by block.

    Attributes:
        triangle: (bypassed blocks, B, 2) after each block, norm of the change, and relative.
        baseline: (B, T, D) after each block but the last.
        bypassed: the same, with a bypass of that block.
    """

    def __init__(self, trie: Trie) -> None:
        self.trie = trie
        self.triangle: list[Tensor] = []
        self.baseline: list[Tensor] = []
        self.bypassed: list[Tensor] = []

    def __call__(self, number: int, states: Tensor) -> None:
        """See `wavefront.Observer`."""
        # the branches of the baseline and of the bypasses of blocks 0 to `number`
        baseline, *bypasses = self.trie.carrier[number + 1][: number + 2]
        last = states[:, :, -1].to(_BEST)
        self.triangle.append(_compare(last[baseline], last[bypasses]))
        if number < len(self.trie.steps) - 1:
            self.baseline.append(states[baseline].clone())
            self.bypassed.append(states[bypasses[-1]].clone())


def _bounds_of(
    described: Described, blocks: Sequence[Known], embedded: Tensor, seen: _Seen
) -> dict[str, Tensor]:
    """The columns of `DIVERGENCE_BOUNDS`, (L, B), those of the next block (L - 1, B)."""
    rows, next_rows = [], []
    for number, about in enumerate(blocks):
        block = described.block(number, _BEST)
        before = (seen.baseline[number - 1] if number else embedded).to(_BEST)
        look, row = right_after(block, about, before)
        rows.append(row)
        if number:
            moved = seen.bypassed[number - 1].to(_BEST)
            next_rows.append(one_block_on(block, about, look, before, moved))
    return {
        name: torch.stack([row[name] for row in each])
        for each in (rows, next_rows)
        if each
        for name in each[0]
    }


def _of_logits(known: Anatomy, states: Tensor) -> dict[str, Tensor]:
    """Of states (1 + L, B, D) that the head reads, of the baseline and of each bypass.

    Returns:
        ``triangle`` (L, B, 2), as `_compare`; ``kl`` (L, B), nats.
    """
    shape = len(states) - 1, states.shape[1]
    triangle = states.new_empty((*shape, 2), dtype=_BEST)
    kl = states.new_empty(shape, dtype=_BEST)
    for rows in torch.split(torch.arange(states.shape[1]), _LOGIT_ROWS):
        without = _centred_logits(known, states[0, rows])
        log_probs = without.log_softmax(-1)
        for i, each in enumerate(states[1:]):  # one by one: logits are large
            logits = _centred_logits(known, each[rows])
            triangle[i, rows] = _compare(without, logits)
            gaps = log_probs - logits.log_softmax(-1)
            kl[i, rows] = (log_probs.exp() * gaps).sum(-1).clamp_min(0)
    return {"triangle": triangle, "kl": kl}


def _compare(without: Tensor, bypassed: Tensor) -> Tensor:
    """Norm of the change, and the same relative to the baseline: (…, B, 2), of (…, B, D)."""
    change = (bypassed - without).norm(dim=-1)
    least = torch.finfo(_BEST).tiny  # where all is zero, the change is zero too
    return torch.stack([change, change / without.norm(dim=-1).clamp_min(least)], -1)


def _centred_logits(known: Anatomy, states: Tensor) -> Tensor:
    """Logits (B, V) without their mean, on which no probability depends; float64."""
    logits = torch.cat([piece.to(_BEST) for _, piece in pieces(known, states)])
    return logits - logits.mean(-1, keepdim=True)


def _require_finite(engine: Engine, tokens: Tensor, kl: Tensor, sample_ids: pl.Series) -> None:
    """Raise for the first sample whose logits are not finite, saying where it began."""
    finite = kl.isfinite()  # (L, B)
    if finite.all():
        return
    row = int(finite.all(0).logical_not().nonzero()[0])
    first = int(finite[:, row].logical_not().nonzero()[0])
    guilty = 1 + first if finite[:, row].any() else 0  # the baseline is the first
    raise not_finite(engine, guilty, tokens[row], f"sample {sample_ids[row]}")


def _triangle(samples: pl.DataFrame, found: dict[str, Tensor], n_blocks: int) -> pl.DataFrame:
    # a pass orders them by the block of measurement, the logits last
    pairs = [(block, after) for after in range(n_blocks) for block in range(after + 1)]
    pairs += [(block, n_blocks) for block in range(n_blocks)]
    order = sorted(range(len(pairs)), key=pairs.__getitem__)
    change, relative = found["triangle"].unbind(-1)
    kl = torch.full_like(change, torch.nan)
    kl[-n_blocks:] = found["kl"]
    values = {"change": change, "relative": relative, "kl": kl}
    keys = pl.DataFrame([pairs[i] for i in order], schema=["block", "after"], orient="row")
    frame = _frame(samples, keys, {name: value[order] for name, value in values.items()})
    return cast(frame.with_columns(pl.col("kl").fill_nan(None)), DIVERGENCE_TRIANGLE)


def _bounds(samples: pl.DataFrame, found: dict[str, Tensor], n_blocks: int) -> pl.DataFrame:
    values = {}
    following = [name for name in DIVERGENCE_BOUNDS if name.startswith("next_")]
    for name in DIVERGENCE_BOUNDS:
        if name in following:  # there is no next block after the last
            known = found.get(name, found["change"][:0])
            values[name] = torch.cat([known, known.new_zeros(1, known.shape[1])])
        elif name in found:
            values[name] = found[name]
    keys = pl.DataFrame({"block": range(n_blocks)})
    frame = _frame(samples, keys, values)
    inner = pl.col("block") < n_blocks - 1
    nulls = [pl.when(inner).then(pl.col(name)).alias(name) for name in following]
    return cast(frame.with_columns(nulls), DIVERGENCE_BOUNDS)


def _blocks(described: Described, blocks: Sequence[Known]) -> pl.DataFrame:
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
        for number, each in enumerate(blocks)
        for block in [described.block(number)]
    ]
    return cast(pl.DataFrame(rows), DIVERGENCE_BLOCKS)


def _frame(samples: pl.DataFrame, keys: pl.DataFrame, values: dict[str, Tensor]) -> pl.DataFrame:
    """Every sample with every row of `keys`, and beside them `values`, (keys, N) each."""
    rows = crossed(samples.select("sample_id", "split"), keys)
    return rows.with_columns(
        pl.Series(name, value.T.flatten().numpy()) for name, value in values.items()
    )
