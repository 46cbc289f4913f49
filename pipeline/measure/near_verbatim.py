"""Bounds on the probability that a model writes a suffix almost word for word.

A copy with one word changed is still a copy. For a suffix z of S tokens, the near-verbatim mass is
the probability that S tokens, sampled one by one after the prefix, lie within distance d of z. A
beam search constrained to that ball bounds it on both sides: the hypotheses that it finds are a
lower bound, and all that can be missing are the hypotheses that it pruned while the ball could
still be reached::

    z = the cat sat on      d = 1, Hamming
    the ─┬─ cat ─┬─ sat …   no mismatch: this path is never pruned, so d = 0 is exact
         │       └─ ran …   one mismatch: lives, and must follow z from here
         └─ dog ─┬─ sat …   the same
                 └─ ran ✗   two mismatches: its mass is outside of the ball, and is dropped

A hypothesis after t tokens keeps a row of the dynamic program of the edit distance: for each j, the
distance from what it wrote to the first j tokens of z. Its distance in the end is at least the
minimum of that entry plus |j - t| over j, since S - t tokens remain to be written, and S - j of z
to be matched; and some continuation attains it. Hamming distance is the entry at j = t alone.

Source: bounds from below by beam search in arXiv 2603.24917; those from above are ours.

Shapes: V interventions, N samples, P prefix and S suffix tokens, B samples of a batch, Q searches
(a sample in a branch), R hypotheses, C candidates for the next token, W entries of a row of the
dynamic program.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.beam import Beam
from pipeline.interventions.evaluation import one_at_a_time, require_completable
from pipeline.interventions.guard import prepare
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.interventions.memory import in_batches
from pipeline.interventions.readout import pieces
from pipeline.interventions.wavefront import Engine
from pipeline.models.precision import at_least_single
from pipeline.workflow.errors import bad_input

DISTANCES = ("hamming", "levenshtein")
_OTHER, _OUTSIDE = -1, -2
"""In place of a token: any that is none of the candidates; none, since z has no such position."""


class Bounds(NamedTuple):
    """The probability of a sample within distance 0, 1, … d of each suffix lies between these.

    Args:
        lower: (V, N, d+1) float64, 0 to 1; ascending along the last axis.
        upper: likewise; equal to `lower` at distance 0, where both are p_z.
    """

    lower: Tensor
    upper: Tensor


@one_at_a_time
@torch.inference_mode()
def bounds(
    model: PreTrainedModel,
    tokens: Tensor,
    suffix_length: int,
    d: int,
    width: int,
    *,
    distance: str = "hamming",
    top_k: int | None = 40,
    interventions: Sequence[Intervention] = (BASELINE,),
    token_budget: int | None = None,
) -> Bounds:
    """Bound the probability that a sample lies within distance d of each suffix.

    A sample has exactly S tokens, as every continuation here: the end-of-text token is a token like
    any other and ends none. Tokens are drawn at temperature 1 from the `top_k` likeliest, those
    that tie for the last place included, as in transformers. The bounds hold up to the rounding of
    the model itself, which computes in float32 at least; masses are summed in float64.

    Args:
        model: a stock causal language model in evaluation mode, on any device.
        tokens: (N, P+S) int64; P and S at least 1.
        suffix_length: S.
        d: largest distance, 0 or more.
        width: hypotheses that are kept for each suffix and intervention, 1 or more. The time grows
            in proportion, and the bounds meet where nothing was pruned.
        distance: ``hamming``, differing tokens; or ``levenshtein``, the fewest tokens to replace,
            insert and delete.
        top_k: the number of tokens to draw from; None: the whole vocabulary.
        interventions: V of them, without patches; means of the edits ``mean`` and ``mlp-mean`` are
            over `tokens`.
        token_budget: positions at a time, counted once per hypothesis; None: computed from the free
            memory.

    Returns:
        On the CPU, in the order of `interventions` and `tokens`.

    Raises:
        InputError: an unsupported model or edit, a block beyond the last, or NaN or infinity in
            float32.
        ValueError: the model is in training mode, P or S would be 0, or another argument is out of
            its range.
    """
    if len(tokens):  # without samples the bounds are empty
        require_completable(model, tokens, suffix_length)
    if d < 0 or width < 1 or (top_k is not None and top_k < 1) or distance not in DISTANCES:
        raise ValueError(
            f"d {d}, width {width}, top_k {top_k}, distance {distance!r}; expected d of 0 or more, "
            f"width of 1 or more, top_k of 1 or more or None, and one of {DISTANCES}"
        )
    calibration = tokens if len(tokens) else None
    engine = prepare(model, interventions, calibration, None, token_budget, tokens.shape[1] - 1)
    if engine.places:
        raise bad_input(
            "interventions of bounds",
            "a patch",
            "edits without the values of another text: hypotheses have tokens of their own",
            "use complete",
        )
    # texts of equal length that are aligned k tokens apart anywhere are 2 k edits apart, or more
    reach = d // 2 if distance == "levenshtein" else 0

    def work(numbers: range) -> Tensor:
        batch = tokens[numbers.start : numbers.stop].to(engine.device)
        prefix, suffix = batch[:, :-suffix_length], batch[:, -suffix_length:]
        with at_least_single(model):
            search = _Search(engine, suffix, d, width, reach, top_k)
            return search.run(prefix).cpu()[:, engine.ends]

    costs = [engine.trie.branches * width * tokens.shape[1]] * len(tokens)
    budget = engine.budget(tokens.shape[1], caching=True)
    parts = in_batches(costs, budget, None, work, engine.journal)
    shape = 2, len(interventions), 0, d + 1
    found, missed = torch.cat([torch.zeros(shape, dtype=torch.float64), *parts], 2).cumsum(-1)
    return Bounds(found.clamp_max(1), (found + missed).clamp_max(1))


class _Search(NamedTuple):
    """The beam search for suffixes (B, S) in all branches; W is twice the reach, plus one."""

    engine: Engine
    suffix: Tensor
    d: int
    width: int
    reach: int
    top_k: int | None

    def run(self, prefix: Tensor) -> Tensor:
        """(2, G, B, d+1) float64: the mass at each distance found, and at least so far pruned."""
        (batch, length), device = self.suffix.shape, prefix.device
        beam = Beam(self.engine, prefix, length - 1)
        searches = len(beam.states)
        search = torch.arange(searches, device=device)
        mass = torch.ones(searches, dtype=torch.float64, device=device)
        offsets = torch.arange(-self.reach, self.reach + 1, device=device)
        # before the first token, the first j of z are j deletions away; there are none before z
        of_z = (offsets >= 0) & (offsets <= length)
        entries = offsets.where(of_z, self.d + 1).repeat(searches, 1)
        sums = mass.new_zeros(2, searches, self.d + 1)
        for t in range(length):
            token, probability = self._candidates(beam.states, search % batch, t)
            entries = self._next(entries, token, search % batch, t)
            least = (entries + offsets.abs()).amin(-1)
            inside = (probability > 0) & (least <= self.d)
            parent, column = inside.nonzero(as_tuple=True)
            mass = mass[parent] * probability[parent, column]
            token, least = token[parent, column], least[parent, column]
            search, entries = search[parent], entries[parent, column]
            going_on = t < length - 1
            kept = self._kept(search, mass, token, least) & going_on
            ends = search[~kept], least[~kept]
            sums[int(going_on)].index_put_(ends, mass[~kept], accumulate=True)
            search, mass, entries = search[kept], mass[kept], entries[kept]
            if not len(search):
                break
            beam.advance(parent[kept], token[kept])
        return torch.unflatten(sums, 1, (-1, batch))

    def _candidates(self, states: Tensor, sample: Tensor, t: int) -> tuple[Tensor, Tensor]:
        """Tokens (R, C) that may come at position t of the suffix, and their probabilities.

        The tokens of z within reach, the likeliest others, and `_OTHER` for all that remain. A
        hypothesis is worth extending by `width` tokens at most; none is after the last position.
        """
        around = torch.arange(t - self.reach, t + self.reach + 1, device=states.device)
        last = self.suffix.shape[1] - 1
        near = self.suffix[sample][:, around.clamp(0, last)]
        again = (near[:, :, None] == near[:, None]).tril(-1).any(-1)
        tokens, probabilities = [], []
        for rows, logits in pieces(self.engine.known, states):
            if not logits.isfinite().all():
                raise bad_input(
                    "near-verbatim bounds",
                    "NaN or infinity in the logits, in float32",
                    "finite logits",
                    "leave out the intervention: `complete` names it; if it is the baseline, the "
                    "weights are broken",
                )
            if self.top_k is not None and self.top_k < logits.shape[1]:
                least = logits.topk(self.top_k).values[:, -1:]
                logits = logits.masked_fill(logits < least, -torch.inf)
            every = logits.double().softmax(-1)
            of_z = every.gather(1, near[rows]).masked_fill(again[rows], 0)
            every.scatter_(1, near[rows], 0)
            few = min(self.width, int((every > 0).sum(-1).max())) if t < last else 0
            likeliest = every.topk(few)
            every.scatter_(1, likeliest.indices, 0)
            rest = every.sum(-1, keepdim=True)
            other = likeliest.indices.new_full(rest.shape, _OTHER)
            tokens.append(torch.cat([near[rows], likeliest.indices, other], 1))
            probabilities.append(torch.cat([of_z, likeliest.values, rest], 1))
        return torch.cat(tokens), torch.cat(probabilities)

    def _next(self, entries: Tensor, token: Tensor, sample: Tensor, t: int) -> Tensor:
        """The rows (R, C, W) of the dynamic program after one of the tokens (R, C).

        Entry i of `entries` (R, W) belongs to j = t + i - reach. Values above d + 1 count as that.
        """
        width = 2 * self.reach + 1
        z = F.pad(self.suffix, (self.reach, self.reach), value=_OUTSIDE)[sample, t : t + width]
        made = entries[:, None] + (token[:, :, None] != z[:, None])
        inserted = F.pad(entries[:, 1:] + 1, (0, 1), value=self.d + 1)
        made = torch.minimum(made, inserted[:, None])
        for i in range(1, width):
            made[..., i] = torch.minimum(made[..., i], made[..., i - 1] + 1)
        beyond = torch.arange(width, device=z.device) + t + 1 - self.reach > self.suffix.shape[1]
        made[..., beyond] = self.d + 1
        return made.clamp_max(self.d + 1)

    def _kept(self, search: Tensor, mass: Tensor, token: Tensor, least: Tensor) -> Tensor:
        """(R,) bool: z itself, and the largest of each search, up to `width`."""
        worth = mass.masked_fill(least == 0, torch.inf).masked_fill(token == _OTHER, -1)
        order = worth.argsort(descending=True, stable=True)
        order = order[search[order].argsort(stable=True)]
        grouped = search[order]
        rank = torch.arange(len(order), device=order.device) - torch.searchsorted(grouped, grouped)
        kept = torch.zeros_like(search, dtype=torch.bool)
        kept[order[rank < self.width]] = True
        return kept & (token != _OTHER)
