"""Faults put into the engine one at a time: the comparison with the oracle must see each.

A mutant replaces one function of the engine. `survives` says whether the engine then still agrees
with the plain loop.
"""

import dataclasses
from functools import cache

import pytest

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
    """Samples or requests of a family, and what the plain loop says about them."""
    model, listed = tiny(family), interventions(family)
    tokens, requests = half_remembered(model), [*multiple_choice(), *rolling()]
    if measure is complete:
        return tokens, plain.complete(model, tokens, SUFFIX, listed, SAMPLES)
    options = {"max_length": MAX_LENGTH, "calibration_tokens": tokens}
    expected = plain.score(model, requests, listed, len(requests), **options)
    return (requests, options), expected


def survives(family, measure):
    """Whether the engine agrees with the plain loop on a family."""
    model, listed = tiny(family), interventions(family)
    given, expected = case(family, measure)
    try:
        if measure is complete:
            ours = complete(model, given, SUFFIX, listed)
            assert_same_completions(ours, expected, rounding(model))
        else:
            requests, options = given
            ours = score(model, requests, listed, **options)
            assert_same_scores(ours, expected, rounding(model))
    except AssertionError:
        return False
    return True


def no_mask(patch):
    original = scoring._padded
    patch(scoring, "_padded", lambda rows, device: (original(rows, device)[0], None))


def no_positions(patch):
    original = wavefront.run

    def run(engine, *args, **options):
        known = dataclasses.replace(engine.known, has_positions=False)
        return original(dataclasses.replace(engine, known=known), *args, **options)

    patch(scoring, "run", run)


def groups_in_the_wrong_order(patch):
    def pick(self, x):
        if self.concatenated:
            x = x[..., -self.groups * self.size :]
        x = x.unflatten(-1, (self.groups, -1))[..., -self.size :]
        return x.repeat(*[1] * (x.ndim - 2), self.heads // self.groups, 1).flatten(-2)

    patch(Values, "pick", pick)


def values_by_thirds(patch):
    patch(Values, "pick", lambda self, x: x[..., -self.heads * self.size :])


def keys_for_values(patch):
    def pick(self, x):
        return x.unflatten(-1, (self.groups, 3, -1))[..., 1, :].flatten(-2)

    patch(Values, "pick", pick)


def without_clipping(patch):
    original = Values.pick
    patch(Values, "pick", lambda self, x: original(dataclasses.replace(self, clip=None), x))


def forks_from_another_branch(patch):
    original = wavefront.rows_of

    def rows_of(trie, batch, device):
        made, branches = [], 1
        for rows, step in zip(original(trie, batch, device), trie.steps, strict=True):
            appended = rows.appended
            if appended is not None:
                appended = (appended + batch) % (branches * batch)
            made.append(BlockRows(appended, rows.edits))
            branches = len(step.edits)
        return made

    patch(wavefront, "rows_of", rows_of)


def edits_in_the_next_branch(patch):
    original = wavefront._selection

    def selection(branches, batch, row):
        return original([max(branch - 1, 0) for branch in branches], batch, row)

    patch(wavefront, "_selection", selection)


def edits_in_the_next_samples(patch):
    original = wavefront._selection

    def selection(branches, batch, row):
        some = original(branches, batch, row)
        return slice(some.start - 1, some.stop - 1) if isinstance(some, slice) else some - 1

    patch(wavefront, "_selection", selection)


def changed_start(patch, change):
    original = decoding.decode
    patch(
        decoding,
        "decode",
        lambda engine, cache, start, *rest: original(engine, cache, change(start), *rest),
    )


def cache_of_another_sample(patch):
    changed_start(patch, lambda s: dataclasses.replace(s, sample=s.sample.roll(1)))


def cache_and_edits_of_another_branch(patch):
    changed_start(patch, lambda s: dataclasses.replace(s, branch=s.branch.roll(1)))


def another_wrong_token(patch):
    changed_start(patch, lambda s: dataclasses.replace(s, token=s.token.roll(1)))


def cache_that_forgets(patch):
    """What a step adds is not there in the next: the keys of the true suffix are."""
    original = caches.SideBySide.update

    def update(self, keys, values, layer_idx, *args, **kwargs):
        kept = [buffer.clone() for buffer in self.buffers[layer_idx]]
        made = [x.clone() for x in original(self, keys, values, layer_idx)]
        self.buffers[layer_idx] = tuple(kept)
        return tuple(made)

    patch(caches.SideBySide, "update", update)


def cache_without_this_step(patch):
    def update(self, keys, values, layer_idx, *args, **kwargs):
        end = self.position + 1
        return tuple(buffer[: self.active, :, :end] for buffer in self.buffers[layer_idx])

    patch(caches.SideBySide, "update", update)


def decoding_a_position_late(patch):
    patch(caches.SideBySide, "get_seq_length", lambda self, layer_idx=0: self.position + 1)


def decoding_without_edits(patch):
    original = decoding.hooked

    def hooked(known, blocks, **options):
        return original(known, [BlockRows() for _ in blocks], **options)

    patch(decoding, "hooked", hooked)


def continuations_of_another_context(patch):
    original = caches.Continued.__init__

    def init(self, contexts, trie, of):
        original(self, contexts, trie, of.roll(1))

    patch(caches.Continued, "__init__", init)


def continuations_of_another_branch(patch):
    original = caches.Continued.update

    def update(self, keys, values, layer_idx, *args, **kwargs):
        contexts = self.contexts.blocks[layer_idx]
        size = len(contexts[0]) // len(self.trie.steps[layer_idx].edits)
        self.contexts.blocks[layer_idx] = tuple(x.roll(size, 0) for x in contexts)
        return original(self, keys, values, layer_idx)

    patch(caches.Continued, "update", update)


def a_block_edit_left_out(patch):
    """The last of a block's edits is forgotten."""
    original = wavefront.rows_of

    def rows_of(trie, batch, device):
        made = original(trie, batch, device)
        return [BlockRows(rows.appended, dict(list(rows.edits.items())[:-1])) for rows in made]

    patch(wavefront, "rows_of", rows_of)


def end_of_text_generated(patch):
    original = readout._without
    patch(readout, "_without", lambda *found: original(*found[:-1], found[-1][:0]))


MUTANTS = [
    (no_mask, "gpt_neo", score),
    (no_mask, "mpt", score),
    (no_positions, "gpt2", score),
    (groups_in_the_wrong_order, "llama", complete),
    (groups_in_the_wrong_order, "falcon-grouped", complete),
    (values_by_thirds, "gpt_neox", complete),
    (keys_for_values, "bloom", complete),
    (end_of_text_generated, "gpt_neox", complete),
    (a_block_edit_left_out, "gpt_neox", complete),
    (without_clipping, "olmo-clip", complete),
    *(
        (mutant, family, measure)
        for mutant in (
            forks_from_another_branch,
            edits_in_the_next_branch,
            edits_in_the_next_samples,
        )
        for family in ("gpt_neox", "gemma2")
        for measure in (complete, score)
    ),
    *(
        (mutant, family, complete)
        for mutant in (
            cache_of_another_sample,
            cache_and_edits_of_another_branch,
            another_wrong_token,
            cache_that_forgets,
            cache_without_this_step,
            decoding_a_position_late,
            decoding_without_edits,
        )
        for family in ("gpt_neox", "gpt_neo")
    ),
    *(
        (mutant, family, score)
        for mutant in (continuations_of_another_context, continuations_of_another_branch)
        for family in ("gpt_neox", "bloom")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "family", "measure"),
    MUTANTS,
    ids=[f"{mutant.__name__}-{family}-{measure.__name__}" for mutant, family, measure in MUTANTS],
)
def test_the_comparison_sees(mutant, family, measure, monkeypatch):
    assert survives(family, measure)  # tried before, so that the comparison has to see the mutant
    mutant(monkeypatch.setattr)
    assert not survives(family, measure)


def test_the_engine_itself_survives():
    assert survives("gpt_neox", complete)
    assert survives("gpt_neox", score)
