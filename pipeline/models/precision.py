"""Lets a model in half precision compute in float32, one module's weights at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pipeline.models.modules import attached


@contextmanager
def at_least_single(*models: nn.Module) -> Iterator[None]:
    """Compute modules with half-precision weights in float32 while the context lasts.

    Before such a module is called, its weights are replaced by a float32 copy, and restored
    afterwards. Embeddings are looked up unchanged, unless a family scales them. Between calls no
    copy exists; after the context, even after an exception, the model has its own parameters again.

    Args:
        models: in one precision or several; one without half precision is left alone.
    """
    aside: dict[nn.Module, dict[str, nn.Parameter]] = {}

    def widen(module: nn.Module, _args: Any) -> None:
        aside.setdefault(module, _converted(module, torch.float32))

    def put_back(module: nn.Module, _args: Any = None, _returned: Any = None) -> None:
        _restore(module, aside.pop(module))

    def widen_result(_module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        return returned.float()

    def hooks() -> Iterator[RemovableHandle]:
        for module in dict.fromkeys(m for model in models for m in model.modules()):
            weights = module.parameters(recurse=False)
            if not any(torch.finfo(weight.dtype).bits < 32 for weight in weights):
                continue
            if type(module).forward is nn.Embedding.forward:
                yield module.register_forward_hook(widen_result)
            else:
                yield module.register_forward_pre_hook(widen)
                yield module.register_forward_hook(put_back)

    with attached(hooks()):
        try:
            yield
        finally:
            for module in list(aside):  # after an exception during a call
                put_back(module)


def without_hooks(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a module without children for `x`, in the precision of `x`, without hooks."""
    replaced: dict[str, nn.Parameter] = {}
    if any(weight.dtype != x.dtype for weight in module.parameters()):
        replaced = _converted(module, x.dtype)
    try:
        made: Tensor = module.forward(x)
    finally:
        _restore(module, replaced)
    return made


def _converted(module: nn.Module, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Give a module's own weights another precision; returns the weights from before.

    Those of a streamed module have no content between its calls; when it is called, their content
    is read in the precision that they then have.
    """
    weights = dict(module.named_parameters(recurse=False))
    _restore(
        module,
        {name: nn.Parameter(w.to(dtype), requires_grad=False) for name, w in weights.items()},
    )
    return weights


def _restore(module: nn.Module, weights: dict[str, nn.Parameter]) -> None:
    for name, weight in weights.items():
        setattr(module, name, weight)
