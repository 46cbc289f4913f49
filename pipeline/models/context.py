"""Limits that plans need as well as evaluations; needs no torch."""

from typing import Any

UNBOUNDED = 2048
"""Positions of a model without a limit, whose position biases cover any distance."""


def context_length(config: Any) -> int:
    """Positions that a model of this transformers configuration was made for, 1 or more."""
    return stated_length(config) or UNBOUNDED


def stated_length(config: Any) -> int | None:
    """The same as the configuration says; None: it says nothing."""
    config = config.get_text_config()
    for name in ("max_position_embeddings", "max_seq_len", "seq_length"):
        if length := getattr(config, name, None):
            return int(length)
    return None
