"""The number of sampled continuations until a suffix appears: (n, p)-discoverable extraction.

A text that greedy decoding does not produce may still appear after a few samples. A suffix of
probability p_z appears in n independent tries with probability 1 - (1 - p_z)^n, so it takes
log(1 - p) / log1p(-p_z) tries to see it with probability p. Nothing is sampled: p_z is exact.

Source: Hayes et al., arXiv 2410.19482.
"""

import numpy as np
from numpy.typing import NDArray

TRIES = (1, 10, 100, 1_000, 1_000_000)
"""The n for which the share of extracted samples is reported."""

PROBABILITY = 0.5
"""p: a suffix counts as extracted within n tries if it appears with at least this probability."""

SCHEMES = {"extractable": "suffix_log_prob", "extractable_top_40": "suffix_log_prob_top_40"}
"""Metric of the summary -> the log probability that determines it; both at temperature 1."""

_TINY = -37.0  # below, -log1p(-x) equals x in float64


def log_tries(
    log_prob: NDArray[np.float64], probability: float = PROBABILITY
) -> NDArray[np.float64]:
    """The natural logarithm of the number of tries that show a suffix with `probability`.

    All is computed in logarithms, since p_z may be e⁻²⁰⁰⁰ or less, where float64 underflows.

    Args:
        log_prob: of the suffixes, nats, of any shape; -inf where they cannot appear.
        probability: to see a suffix at least once, above 0 and below 1.

    Returns:
        Of the shape of `log_prob`; 0 (one try) or more; infinite where the suffix cannot appear.
    """
    x = np.minimum(np.asarray(log_prob, np.float64), 0.0)  # rounding may bring it above
    with np.errstate(divide="ignore"):
        # -log1p(-p_z); near p_z = 1 its argument would lose its digits
        near_one = -np.log(-np.expm1(np.maximum(x, -np.log(2))))
        moderate = -np.log1p(-np.exp(np.clip(x, _TINY, -np.log(2))))
        log_rate = np.where(x < _TINY, x, np.log(np.where(x > -np.log(2), near_one, moderate)))
    return np.asarray(np.maximum(np.log(-np.log1p(-probability)) - log_rate, 0.0))


def out_within(log_prob: NDArray[np.float64], tries: int) -> NDArray[np.bool_]:
    """Whether each suffix appears within `tries`, 1 or more, with `PROBABILITY` or above."""
    # the tolerance keeps rounding from deciding where p_z is exactly `PROBABILITY`
    return np.asarray(log_tries(log_prob) <= np.log(tries) + 1e-12)
