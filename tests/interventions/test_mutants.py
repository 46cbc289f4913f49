"""Faults put into the engine one at a time: the comparison with the oracle must see each."""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import torch

from pipeline.interventions import caches, complete, decoding, readout, score, scoring, wavefront
from pipeline.interventions.hooks import BlockRows
from pipeline.models.sites import Values
from tests.families import tiny
from tests.interventions.cases import (
    MAX_LENGTH,
    SAMPLES,
    SUFFIX,
    assert_same_completions,
    assert_same_scores,
    half_remembered,
    interventions,
    multiple_choice,
    rolling,
    rounding,
)
from tests.oracle import plain


@cache
def case(family, measure):
    """How the engine evaluates a family, and the comparison with the plain loop, which it passes.

    Tried here, so that later the comparison has to see the mutant, and not the edits' certificates.
    """
    model, listed = tiny(family), interventions(family)
    tokens, requests = half_remembered(model), [*multiple_choice(), *rolling()]
    if measure is complete:
        engine = partial(complete, model, tokens, SUFFIX, listed)
        expected, same = plain.complete(*engine.args, SAMPLES), assert_same_completions
    else:
        options = {"max_length": MAX_LENGTH, "calibration_tokens": tokens}
        engine = partial(score, model, requests, listed, **options)
        expected, same = plain.score(*engine.args, len(requests), **options), assert_same_scores
    compare = partial(same, expected=expected, tolerance=rounding(model))
    compare(engine())
    return engine, compare


def instead_of(owner, name):
    """A mutant that calls the decorated function, with the original before its arguments."""

    def mutant(function):
        def put(patch):
            original = getattr(owner, name)
            patch(owner, name, lambda *given, **options: function(original, *given, **options))

        put.__name__ = function.__name__
        return put

    return mutant


@instead_of(scoring, "_padded")
def no_mask(original, *given):
    tokens, mask = original(*given)
    return tokens, mask.new_ones(mask.shape)


@instead_of(wavefront, "masked_call")
def no_positions(original, *given):
    return {"attention_mask": original(*given)["attention_mask"]}


@instead_of(Values, "pick")
def groups_in_the_wrong_order(_original, self, x):
    if self.concatenated:
        x = x[..., -self.groups * self.size :]
    x = x.unflatten(-1, (self.groups, -1))[..., -self.size :]
    return x.repeat(*[1] * (x.ndim - 2), self.heads // self.groups, 1).flatten(-2)


@instead_of(Values, "pick")
def keys_for_values(_original, self, x):
    return x.unflatten(-1, (self.groups, 3, -1))[..., 1, :].flatten(-2)


@instead_of(Values, "pick")
def without_clipping(original, self, x):
    return original(replace(self, clip=None), x)


@instead_of(wavefront, "rows_of")
def forks_from_another_branch(original, trie, batch, device):
    made, branches = [], 1
    for rows, step in zip(original(trie, batch, device), trie.steps, strict=True):
        appended = rows.appended
        if appended is not None:
            appended = (appended + batch) % (branches * batch)
        made.append(BlockRows(appended, rows.edits))
        branches = len(step.edits)
    return made


@instead_of(wavefront, "rows_of")
def a_block_edit_left_out(original, *given):
    """The last of a block's edits is forgotten."""
    return [BlockRows(r.appended, dict(list(r.edits.items())[:-1])) for r in original(*given)]


@instead_of(wavefront, "_selection")
def edits_in_the_next_samples(original, branches, batch, row):
    some = original(branches, batch, row)
    return slice(some.start - 1, some.stop - 1) if isinstance(some, slice) else some - 1


def decoding_from_another(field):
    """A row goes on from the sample or branch (cache and edits) of another row."""

    def rolled(original, engine, cache, start, *rest):
        other = getattr(start, field).roll(1)
        return original(engine, cache, replace(start, **{field: other}), *rest)

    rolled.__name__ = f"decoding_from_another_{field}"
    return instead_of(decoding, "decode")(rolled)


@instead_of(decoding, "decode")
def decoding_from_another_token(original, engine, cache, start, *rest):
    """A row goes on from the wrong token of another row, and does not tell."""
    at = torch.arange(len(start.tokens)), start.mismatch
    tokens = start.tokens.clone()
    tokens[at] = tokens[at].roll(1)
    made = original(engine, cache, replace(start, tokens=tokens), *rest)
    made.token[at] = start.tokens[at]
    return made


@instead_of(caches.SideBySide, "update")
def cache_that_forgets(original, self, keys, values, layer_idx, *args, **kwargs):
    """What a step adds is not there in the next: the keys of the true suffix are."""
    kept = [buffer.clone() for buffer in self.buffers[layer_idx]]
    made = [x.clone() for x in original(self, keys, values, layer_idx)]
    self.buffers[layer_idx] = tuple(kept)
    return tuple(made)


@instead_of(caches.SideBySide, "get_seq_length")
def decoding_a_position_late(_original, self, layer_idx=0):
    return self.position + 1


@instead_of(decoding, "hooked")
def decoding_without_edits(original, known, blocks, **options):
    return original(known, [BlockRows() for _ in blocks], **options)


@instead_of(caches.Continued, "__init__")
def continuations_of_another_context(original, self, contexts, trie, of):
    original(self, contexts, trie, of.roll(1))


@instead_of(caches.Continued, "update")
def continuations_of_another_branch(original, self, keys, values, layer_idx, *args, **kwargs):
    contexts = self.contexts.blocks[layer_idx]
    size = len(contexts[0]) // len(self.trie.steps[layer_idx].edits)
    self.contexts.blocks[layer_idx] = tuple(x.roll(size, 0) for x in contexts)
    return original(self, keys, values, layer_idx)


@instead_of(readout, "_without")
def end_of_text_generated(original, *found):
    return original(*found[:-1], found[-1][:0])


DECODING = (
    *map(decoding_from_another, ("sample", "branch")),
    decoding_from_another_token,
    cache_that_forgets,
    decoding_a_position_late,
    decoding_without_edits,
)
CONTINUED = (continuations_of_another_context, continuations_of_another_branch)
PLACES = {
    no_mask: (["gpt_neo", "mpt"], [score]),
    no_positions: (["gpt2"], [score]),
    groups_in_the_wrong_order: (["llama", "falcon-grouped"], [complete]),
    keys_for_values: (["bloom"], [complete]),
    end_of_text_generated: (["gpt_neox"], [complete]),
    a_block_edit_left_out: (["gpt_neox"], [complete]),
    without_clipping: (["olmo-clip"], [complete]),
    forks_from_another_branch: (["gpt_neox", "gemma2"], [complete, score]),
    edits_in_the_next_samples: (["gpt_neox", "gemma2"], [complete, score]),
    **dict.fromkeys(DECODING, (["gpt_neox", "gpt_neo"], [complete])),
    **dict.fromkeys(CONTINUED, (["gpt_neox", "bloom"], [score])),
}
MUTANTS = [each for mutant, places in PLACES.items() for each in product([mutant], *places)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "family", "measure"),
    MUTANTS,
    ids=[f"{mutant.__name__}-{family}-{measure.__name__}" for mutant, family, measure in MUTANTS],
)
def test_the_comparison_sees(mutant, family, measure, monkeypatch):
    engine, compare = case(family, measure)
    mutant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        compare(engine())
