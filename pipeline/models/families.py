"""Which families there are, and the adapter of a given model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from transformers import PreTrainedModel

from pipeline.errors import InputError, Problem
from pipeline.models import gpt_neo, gpt_neox
from pipeline.models.activations import ACTIVATIONS
from pipeline.models.decoder import Decoder

FAMILIES: Mapping[str, Callable[..., Decoder]] = {
    "gpt_neo": gpt_neo.adapt,
    "gpt_neox": gpt_neox.adapt,
}
"""The `model_type` of a transformers configuration -> its adapter."""

PRECISIONS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

_ROTARIES = ("default", "linear")  # those whose angles do not depend on the sequence's length


def adapt(model: PreTrainedModel) -> Decoder:
    """The decoder over a stock model's own weights.

    Args:
        model: a causal language model of one of `FAMILIES`, its weights in one precision.

    Raises:
        InputError: an architecture, activation, rotary scaling or precision that is not supported,
            each with what is.
    """
    problems = _problems(model)
    if problems:
        raise InputError(*problems)
    return FAMILIES[model.config.model_type](model)


def _problems(model: PreTrainedModel) -> list[Problem]:
    config = model.config
    if config.model_type not in FAMILIES or not hasattr(model, "lm_head"):
        return [
            Problem(
                what="the model's architecture",
                got=f"{config.model_type} ({type(model).__name__})",
                expected=f"a causal language model, one of {', '.join(sorted(FAMILIES))}",
                remedy="choose such a model, or write its adapter: one file in pipeline/models/",
            )
        ]
    problems = []
    activation = getattr(config, "hidden_act", None) or getattr(config, "activation_function", None)
    if activation not in ACTIVATIONS:
        problems.append(
            Problem(
                what="the model's activation",
                got=repr(activation),
                expected=f"one of {', '.join(sorted(ACTIVATIONS))}",
                remedy="add it to pipeline/models/activations.py",
            )
        )
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in _ROTARIES:
        problems.append(
            Problem(
                what="the model's rotary embedding",
                got=repr(rotary),
                expected=f"one of {', '.join(_ROTARIES)}",
                remedy="choose a model whose rotary angles do not change with the length",
            )
        )
    precisions = {parameter.dtype for parameter in model.parameters()}
    if len(precisions) != 1 or not precisions <= set(PRECISIONS):
        problems.append(
            Problem(
                what="the precision of the model's weights",
                got=", ".join(sorted(map(str, precisions))),
                expected=f"one of {', '.join(map(str, PRECISIONS))} throughout",
                remedy="load the model with dtype=torch.float32, or another of these",
            )
        )
    return problems
