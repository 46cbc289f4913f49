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

from collections.abc import Iterable, Iterator, Sequence
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
from pipeline.interventions.wavefront import Engine, run
from pipeline.models.context import context_length
from pipeline.models.precision import at_least_single
from pipeline.models.sites import Anatomy, anatomy
from pipeline.samples.frame import check_samples
from pipeline.theory import linear_fit
from pipeline.theory.block_bounds import Known, know, one_block_on, right_after
from pipeline.theory.columns import DIVERGENCE_BLOCKS, DIVERGENCE_BOUNDS, DIVERGENCE_TRIANGLE
from pipeline.theory.parts import Described
from pipeline.workflow.tables import Schema, cast, dtypes, empty

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

    The model is in evaluation mode, on any device; the samples, as `SAMPLES`, are of any splits,
    one prefix and one suffix length. The budget is of tokens at a time, counted once a branch of
    the wavefront, by default from the memory that is free; it changes no result beyond rounding.
    The journal records halved batches.

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
    in_single = described.dtype != model.dtype
    engine = Engine(known, sweep(described.n_blocks)[: 1 + described.n_blocks], in_single=in_single)
    most = engine.budget(prefixes.shape[1], caching=False)
    budget = token_budget or max(1, most // 2)  # half, since the bounds need memory too

    def work(numbers: range) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
        batch = prefixes[numbers.start : numbers.stop].to(model.device)
        ids = samples["sample_id"][numbers.start : numbers.stop]
        seen: list[Tensor] = []  # after each block (bypassed blocks, B, 2), as `_compare`
        # before each block (1 or 2, B, T, D): of the baseline, and with the block before bypassed
        states = [described.embed(batch)[None]]

        def observe(number: int, after: Tensor) -> None:
            # the branches of the baseline and of the bypasses of blocks 0 to `number`
            baseline, *bypasses = engine.trie.carrier[number + 1][: number + 2]
            last = after[:, :, -1].to(_BEST)
            seen.append(_compare(last[baseline], last[bypasses]))
            states.append(after[[baseline, bypasses[-1]]])

        with at_least_single(model):
            last = run(engine, batch, observer=observe)[engine.ends, :, -1]
            logits, kl = _of_logits(known, last)
            _require_finite(engine, batch, kl, ids)
        changes = [each.cpu() for each in (*seen, logits)]
        made = [*_triangle(ids, changes, kl.cpu())], [*_bounds(ids, described, blocks, states)]
        progress(numbers.stop, len(prefixes))
        return made

    with torch.inference_mode():
        fits = linear_fit.fit(described, prefixes, samples["sample_id"].to_list())
        blocks = [know(described.block(i, _BEST), both) for i, both in enumerate(fits)]
        costs = [prefixes.shape[1] * engine.trie.branches] * len(prefixes)
        parts = in_batches(costs, budget, None, work, journal or Journal())
    triangles, bounds = zip(*parts, strict=True)
    about = [
        {
            "block": number,
            "head_norms": float(block.heads.sum()),
            "linear_norm": block.fits.stream.norm,
            "r_squared": block.fits.stream.r_squared,
        }
        for number, block in enumerate(blocks)
    ]
    return Divergence(
        _in_order(samples, triangles, DIVERGENCE_TRIANGLE),
        _in_order(samples, bounds, DIVERGENCE_BOUNDS),
        pl.DataFrame(about, schema=dtypes(DIVERGENCE_BLOCKS)),
    )


def _of_logits(known: Anatomy, states: Tensor) -> tuple[Tensor, Tensor]:
    """Of states (1 + L, B, D) that the head reads, of the baseline and of each bypass.

    Returns:
        The changes (L, B, 2), as `_compare`; KL divergences (L, B), nats.
    """
    changes = states.new_empty((len(states) - 1, states.shape[1], 2), dtype=_BEST)
    kl = torch.empty_like(changes[..., 0])
    for rows in torch.split(torch.arange(states.shape[1]), _LOGIT_ROWS):
        without = _centred_logits(known, states[0, rows])
        log_probs = without.log_softmax(-1)
        for i, each in enumerate(states[1:]):  # one by one: logits are large
            logits = _centred_logits(known, each[rows])
            changes[i, rows] = _compare(without, logits)
            gaps = log_probs - logits.log_softmax(-1)
            kl[i, rows] = (log_probs.exp() * gaps).sum(-1).clamp_min(0)
    return changes, kl


def _compare(without: Tensor, bypassed: Tensor) -> Tensor:
    """Norm of the change, and the same relative to the baseline: (…, B, 2), of (…, B, D)."""
    change = (bypassed - without).norm(dim=-1)
    least = torch.finfo(_BEST).tiny  # where all is zero, the change is zero too
    return torch.stack([change, change / without.norm(dim=-1).clamp_min(least)], -1)


def _centred_logits(known: Anatomy, states: Tensor) -> Tensor:
    """Logits (B, V) without their mean, on which no probability depends; float64."""
    logits = torch.cat([piece.to(_BEST) for _, piece in pieces(known, states)])
    return logits - logits.mean(-1, keepdim=True)


def _require_finite(engine: Engine, tokens: Tensor, kl: Tensor, ids: pl.Series) -> None:
    """Raise for the first sample whose logits are not finite, saying where it began."""
    bad = kl.isfinite().logical_not()  # (L, B)
    if bad.any():
        row = int(bad.any(0).nonzero()[0])
        first = int(bad[:, row].nonzero()[0])
        guilty = 0 if bad[:, row].all() else 1 + first  # the baseline is the first
        raise not_finite(engine, guilty, tokens[row], f"sample {ids[row]}")


def _triangle(ids: pl.Series, changes: Sequence[Tensor], kl: Tensor) -> Iterator[pl.DataFrame]:
    for block in range(len(kl)):
        for after in range(block, len(changes)):
            change, relative = changes[after][block].unbind(-1)
            of_logits = {"kl": kl[block]} if after == len(kl) else {}
            yield _rows(ids, block, after=after, change=change, relative=relative, **of_logits)


def _bounds(
    ids: pl.Series, described: Described, blocks: Sequence[Known], states: Sequence[Tensor]
) -> Iterator[pl.DataFrame]:
    made: list[dict[str, Tensor]] = []
    for number, about in enumerate(blocks):
        block = described.block(number, _BEST)
        before, *moved = states[number].to(_BEST)
        look, row = right_after(block, about, before)
        if moved:
            made[-1] |= one_block_on(block, about, look, before, *moved)
        made.append(row)
    return (_rows(ids, number, **row) for number, row in enumerate(made))


def _rows(ids: pl.Series, block: int, **values: Tensor | int) -> pl.DataFrame:
    """A row for each of B samples, of values (B,) or one for all."""
    columns = {n: v.cpu().numpy() if isinstance(v, Tensor) else v for n, v in values.items()}
    return pl.DataFrame({"sample_id": ids, "block": block, **columns})


def _in_order(
    samples: pl.DataFrame, parts: Iterable[Iterable[pl.DataFrame]], schema: Schema
) -> pl.DataFrame:
    """The rows of all batches, by sample; a column that some of them lack is null there."""
    frames = [frame for part in parts for frame in part]
    whole = pl.concat([empty(schema), *frames], how="diagonal_relaxed").drop("split")
    keys = samples.select("sample_id", "split")
    return cast(keys.join(whole, on="sample_id", maintain_order="left_right"), schema)
