"""Lets a model in half precision compute in float32, one module's weights at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def at_least_single(model: nn.Module) -> Iterator[None]:
    """Compute modules with half-precision weights in float32 while the context lasts.

    Before such a module is called, its weights are replaced by a float32 copy, and restored
    afterwards. Embeddings are looked up unchanged, unless a family scales them. Between calls no
    copy exists; after the context, even after an exception, the model has its own parameters again.

    Args:
        model: in one precision or several; one without half precision is left alone.
    """
    aside: dict[nn.Module, dict[str, nn.Parameter]] = {}

    def widen(module: nn.Module, _args: Any) -> None:
        own = aside.setdefault(module, dict(module.named_parameters(recurse=False)))
        for name, weight in own.items():
            delattr(module, name)  # a parameter may not become a plain tensor
            setattr(module, name, weight.float())

    def put_back(module: nn.Module, _args: Any = None, _returned: Any = None) -> None:
        for name, weight in aside.pop(module).items():
            setattr(module, name, weight)

    def widen_result(_module: nn.Module, _args: Any, returned: Tensor) -> Tensor:
        return returned.float()

    with ExitStack() as stack:
        for module in model.modules():
            weights = module.parameters(recurse=False)
            if not any(torch.finfo(weight.dtype).bits < 32 for weight in weights):
                continue
            if type(module).forward is nn.Embedding.forward:
                stack.callback(module.register_forward_hook(widen_result).remove)
            else:
                stack.callback(module.register_forward_pre_hook(widen).remove)
                stack.callback(module.register_forward_hook(put_back).remove)
        try:
            yield
        finally:
            for module in list(aside):  # after an exception during a call
                put_back(module)


def without_hooks(module: nn.Module, x: Tensor) -> Tensor:
    """The output of a module without children for `x`, in the precision of `x`, without hooks."""
    if any(weight.dtype != x.dtype for weight in module.parameters()):
        module = copy.copy(module)
        own: dict[str, Any] = module._parameters
        module._parameters = {name: None if w is None else w.to(x.dtype) for name, w in own.items()}
    made: Tensor = module.forward(x)
    return made
