from __future__ import annotations

import random

import pytest

from pipeline.corpus.canaries import KINDS, record_text


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_depends_on_its_seed_alone(kind: str) -> None:
    first = record_text(kind, random.Random(0))
    assert first == record_text(kind, random.Random(0))
    assert first != record_text(kind, random.Random(1))
    assert first.startswith(f"# {kind}\n")
    assert len(set(first.splitlines())) == 9
