"""The stage that checks the study.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pipeline.study.composition import load


def check() -> None:
    """Check params.yaml."""
    from pipeline.workflow.files import write_json

    study = load()
    write_json(study.data / "study.json", {"study": study.study})
