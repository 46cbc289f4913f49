"""Temporary changes of a model's modules: hooks, and other functions in place of `forward`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def attached(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of the context, after an exception too, also while they are set."""
    with ExitStack() as stack:
        for handle in handles:
            stack.callback(handle.remove)
        yield


@contextmanager
def forward_replaced(
    modules: Iterable[nn.Module], replacement: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace the `forward` of modules; afterwards each has its own again, or the one set before.

    `replacement` is given the present `forward` of a module, and returns another.
    """
    with ExitStack() as stack:
        for module in modules:
            if (before := vars(module).get("forward")) is None:
                stack.callback(vars(module).pop, "forward", None)
            else:
                stack.callback(setattr, module, "forward", before)
            module.forward = replacement(module.forward)
        yield


def states_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The states that a block receives, first or by name."""
    states: Tensor = args[0] if args else kwargs["hidden_states"]
    return states


def states_out(returned: Any) -> Tensor:
    """The states that a block returns, alone or first in a tuple."""
    return returned if isinstance(returned, Tensor) else returned[0]
