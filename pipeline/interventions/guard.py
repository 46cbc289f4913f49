"""Tests a model before use: edits must change what they should, and nothing else.

The sites of a model are found by the behaviour of its modules (`models.sites`). Here the wavefront
itself reads a few random tokens, without a mask, and with padding on the left as for benchmarks:

- the branch without edits must agree with the unmodified model;
- the identity must change nothing at a row's first token, which attends only to itself anyway.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.interventions.certificates import certify
from pipeline.interventions.edits import Source, rules_of
from pipeline.interventions.evaluation import require_rows, require_usable
from pipeline.interventions.hooks import require_editable
from pipeline.interventions.interventions import BASELINE, Intervention, block_name, bypass
from pipeline.interventions.memory import Journal
from pipeline.interventions.trie import build_trie
from pipeline.interventions.wavefront import Engine, means_of, run
from pipeline.models.precision import at_least_single
from pipeline.models.sites import Anatomy, anatomy, broken, padded_call, random_tokens
from pipeline.workflow.errors import InputError, bad_input

_PROVEN: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()
"""Model -> the sites with which it was tested."""


def proven(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a model, after a test on random tokens.

    The test runs before first use, and again once the modules have changed; `sites.anatomy` looks
    for changes at each call.

    Raises:
        InputError: the model is not supported; says what was found and what was expected.
    """
    known = anatomy(model)
    if _PROVEN.get(model) is not known.sites:
        with torch.inference_mode(), at_least_single(model):
            for masked in (False, True):
                _try(known, masked)
        _PROVEN[model] = known.sites
    return known


def prepare(
    model: PreTrainedModel,
    interventions: Sequence[Intervention],
    calibration: Tensor | None = None,
    journal: Journal | None = None,
    token_budget: int | None = None,
    length: int = 0,
) -> Engine:
    """The engine for a model and interventions, once both are tested.

    Edits that need a mean take it over `calibration` (C, T) int64; `length` is the number of tokens
    that are read of the longest text.

    Raises:
        InputError: the model is not supported, or lacks a block, a head or the site of an edit;
            calibration tokens that are not its own; or as for `require_length`.
        ValueError: an edit lacks its calibration tokens.
    """
    if calibration is not None:
        require_rows(model, calibration, "the calibration tokens")
    known = proven(model)
    require_length(known, length)
    build_trie(interventions, len(known.sites))  # raises if a block does not exist
    require_editable(known, interventions)
    sources = sources_of(known, interventions)
    means = means_of(known, interventions, calibration)
    made = Engine(known, interventions, means, journal or Journal(), token_budget, sources=sources)
    certify(made)
    return made


def sources_of(known: Anatomy, interventions: Sequence[Intervention]) -> dict[Source, Anatomy]:
    """The sources of all patches, each with its model.

    Raises:
        InputError: a source is no supported model of the same shape, or no tokens of this one.
        ValueError: a source is in training mode.
    """
    sources = {rule.source: known for rule in rules_of(interventions) if rule.source}
    for source in sources:
        if source.tokens is not None:
            require_rows(known.model, source.tokens[None], "the source of a patch")
        if source.model is None:
            continue
        require_usable(source.model)
        sources[source] = proven(source.model)
        ours, others = _shape(known), _shape(sources[source])
        if ours != others:
            raise bad_input(
                f"the source of a patch, {type(source.model).__name__}",
                ", ".join(f"{n} {name}" for name, n in others.items() if ours[name] != n),
                ", ".join(f"{n} {name}" for name, n in ours.items() if others[name] != n),
                "name a model of the same shape, such as a twin or an earlier step",
            )
    return sources


def _shape(known: Anatomy) -> dict[str, object]:
    values, mlp = known.sites[0].values, known.sites[0].mlp
    return {
        "blocks": len(known.sites),
        "tokens": known.model.config.get_text_config().vocab_size,
        "heads": values.heads,
        "key-value heads": values.groups,
        "numbers of a head": values.size,
        "shape of the last matrix": getattr(getattr(mlp, "weight", None), "shape", None),
    }


def require_length(known: Anatomy, length: int) -> None:
    """Raise if a text of `length` tokens has rotary angles that depend on its length.

    Texts of different lengths share a batch, and a cache holds keys of earlier angles.
    """
    if known.longest is not None and length > known.longest:
        raise bad_input(
            f"texts for {type(known.model).__name__} ({known.model.config.model_type})",
            f"{length} tokens",
            f"at most {known.longest}: beyond, its rotary angles depend on the length of the text",
            "shorten the texts, or set another rope_type for a copy of the model",
        )


def _try(known: Anatomy, masked: bool) -> None:
    tokens = random_tokens(known.model, 2)
    call = padded_call(known.body, tokens) if masked else {}
    bypasses = [bypass(block_name(block), (block,)) for block in range(len(known.sites))]
    engine = Engine(known, [BASELINE, *bypasses])
    stock = known.body(input_ids=tokens, use_cache=False, **call)[0]
    try:
        states = run(engine, tokens, mask=call.get("attention_mask"))
    except (RuntimeError, LookupError) as error:
        raise _refusal(known, f"{type(error).__name__} where rows are appended: {error}") from error
    baseline, *bypassed = states[engine.ends]
    if not stock.isfinite().all():
        raise broken(known.model, "what the head reads")
    scale = float(stock.abs().amax()) * torch.finfo(stock.dtype).eps ** 0.5

    def differ(one: Tensor, other: Tensor) -> bool:
        return not bool(((one - other).abs() <= scale).all())

    first = 1 if masked else 0  # the first column is padding in a call with a mask
    if differ(baseline[:, first:], stock[:, first:]):
        raise _refusal(known, "rows without an edit that differ from the unmodified model")
    for block, states_of in enumerate(bypassed):
        edited = states_of[:, first]  # may overflow: evaluation reports where
        if edited.isfinite().all() and differ(edited, baseline[:, first]):
            raise _refusal(known, f"a bypass of block {block} that changes the first token")


def _refusal(known: Anatomy, got: str) -> InputError:
    return bad_input(
        what=f"{type(known.model).__name__} ({known.model.config.model_type}), tried on random "
        "tokens",
        got=got,
        expected="edits that change the rows that have them, from the second token on",
        remedy="evaluate another model, or report this architecture",
    )
