"""What is done to a model: interventions, and the evaluation of a model under them.

Imports torch and transformers alone, so that it runs on any machine that has those two.
"""

from typing import TYPE_CHECKING, Any

from pipeline.interventions.interventions import Group, Intervention, sweep

if TYPE_CHECKING:
    from pipeline.interventions.completion import complete
    from pipeline.interventions.editing import bypassed
    from pipeline.interventions.scoring import score

__all__ = ["Group", "Intervention", "bypassed", "complete", "score", "sweep"]

_HOMES = {"bypassed": "editing", "complete": "completion", "score": "scoring"}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: plans and reports do without."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
