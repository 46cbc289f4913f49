"""What an observer of the pass over all interventions sees."""

from contextlib import ExitStack

import pytest
import torch

from pipeline.interventions.wavefront import Engine, run
from pipeline.models.sites import anatomy
from tests.families import BLOCKS, FAMILIES, VOCABULARY, cases, tiny
from tests.interventions.cases import IDENTITIES, rounding
from tests.oracle import plain


@pytest.mark.parametrize("family", cases(FAMILIES))
@torch.inference_mode()
def test_an_observer_sees_the_states_of_every_branch_after_every_block(family):
    model = tiny(family)
    tokens = torch.randint(4, VOCABULARY, (3, 8), generator=torch.Generator().manual_seed(1))
    engine, seen = Engine(anatomy(model), IDENTITIES), []
    run(engine, tokens, observer=lambda b, x: seen.append((b, x.clone())))
    assert [block for block, _ in seen] == list(range(BLOCKS))
    for v, intervention in enumerate(IDENTITIES):
        expected = []

        def keep(_module, _args, returned, expected=expected):
            expected.append(returned[0] if isinstance(returned, tuple) else returned)

        with plain.bypassed(model, intervention), ExitStack() as stack:
            for part in plain.parts(model):
                stack.callback(part.block.register_forward_hook(keep).remove)
            model(tokens, use_cache=False)
        for (block, states), exact in zip(seen, expected, strict=True):
            ours = states[engine.trie.carrier[block + 1][v]]
            atol = max(rounding(model), 1e-5 * float(exact.abs().max()))
            torch.testing.assert_close(ours, exact, rtol=0, atol=atol)
