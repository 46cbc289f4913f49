"""The stage that fetches the datasets of lm-eval's own tasks.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pipeline.study.composition import load


def datasets() -> None:
    """Fetch the datasets of lm-eval's own tasks."""
    from pipeline.tasks.datasets import fetch

    study = load()
    wanted = {task: pinned.model_dump() for task, pinned in study.datasets[study.study].items()}
    fetch(study.data / "datasets", wanted)
