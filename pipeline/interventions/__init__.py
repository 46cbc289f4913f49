"""Interventions on a model, and the evaluation of a model under them.

Beyond the standard library it needs only torch and transformers.
"""

from typing import TYPE_CHECKING, Any

from pipeline.interventions.interventions import Group, Intervention, sweep

if TYPE_CHECKING:
    from pipeline.interventions.completion import complete
    from pipeline.interventions.editing import bypassed
    from pipeline.interventions.edits import edit, patch
    from pipeline.interventions.scoring import score

__all__ = [
    "Group", "Intervention", "bypassed", "complete", "edit", "patch", "score", "sweep",
]  # fmt: skip

_HOMES = {
    "bypassed": "editing",
    "complete": "completion",
    "edit": "edits",
    "patch": "edits",
    "score": "scoring",
}


def __getattr__(name: str) -> Any:
    """Import modules that need torch on first use, since plans and reports do not need them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
