"""Every metric of memorization as one entry; a new metric needs an entry here and a test.

From `METRICS` follow the columns of ``memorization/MODEL.parquet`` and their checks (see
`pipeline.analysis.results`), the means, rates and intervals in ``summary.parquet`` (see
`pipeline.analysis.aggregate`), and their place in the documentation. A metric is computed from the
results of one teacher-forced pass and one greedy continuation, for all samples and interventions at
once; none runs a model.

Shapes: V interventions, N samples, S suffix tokens.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import Column, Schema, boolean, float32, string, uint32, uint32s

LOWEST = 0.2
"""The share of tokens over which Min-K% averages, as in its paper."""

FINITE = float(np.finfo(np.float64).max)
"""The end of a range that excludes infinity."""

Needs = Literal["teacher-forced pass", "greedy continuation", "text"]
_Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Completed:
    """The input of all metrics; see `evaluation.Completions` for the meaning of each.

    Args:
        suffix: (N, S) int64, the true tokens.
        continuation: (V, N, S) int64, greedy; -1 after the first wrong one if not decoded.
        teacher_forced: (V, N, S) int64, argmaxes given the true suffix, as for all fields below.
        entropy: (V, N, S) float32, nats.
        log_prob: (V, N, S) float32, nats.
        log_prob_top_40: (V, N, S) float32, nats; -inf where the rank is above 40.
        rank: (V, N, S) int32, from 1.
        spread: (V, N, S) float32, nats.
        texts: N true suffixes as text; None where there is no tokenizer.
    """

    suffix: NDArray[np.int64]
    continuation: NDArray[np.int64]
    teacher_forced: NDArray[np.int64]
    entropy: _Floats
    log_prob: _Floats
    log_prob_top_40: _Floats
    rank: NDArray[np.int32]
    spread: _Floats
    texts: Sequence[str] | None = None

    @property
    def known(self) -> NDArray[np.bool_]:
        """(V, N), where the greedy continuation is known to its end."""
        return self.continuation[..., -1] >= 0


@dataclass(frozen=True)
class Metric:
    """One metric of each sample under each intervention.

    Args:
        name: of its column.
        meaning: in one line, for the documentation of the tables.
        function: `Completed` -> (V, N).
        dtype: of its column.
        unit: such as nats, tokens, share.
        least: the smallest possible value; -inf only if -inf itself may occur.
        most: the largest possible value, likewise.
        memorized_is_higher: whether a larger value indicates memorization.
        source: the paper that defines it.
        needs: its input. Where a continuation was not decoded, or there is no text, the metrics
            that need it are null.
        aggregate: mean, or rate for a truth value; None: no mean is taken.
    """

    name: str
    meaning: str
    function: Callable[[Completed], NDArray[Any]]
    dtype: type[pl.DataType]
    unit: str
    least: float
    most: float
    memorized_is_higher: bool
    source: str
    needs: Needs = "teacher-forced pass"
    aggregate: Literal["mean", "rate"] | None = "mean"

    @property
    def column(self) -> Column:
        """Its column in the table of memorization."""
        return Column(self.dtype, f"{self.unit}: {self.meaning}", self.nullable)

    @property
    def nullable(self) -> bool:
        """Whether it may be unknown for some samples."""
        return self.needs != "teacher-forced pass"

    def possible(self) -> pl.Expr:
        """True where a row of the table holds a value in the range, or an allowed null."""
        value = pl.col(self.name).cast(pl.Float64)
        grain = 1e-6
        kept = value.is_between(self.least - grain, self.most + grain) & ~value.is_nan()
        return kept | (value.is_null() & self.nullable)


def exact_match(made: Completed) -> NDArray[np.bool_]:
    """Whether the continuation is the suffix, token by token (Eq. 3)."""
    return np.asarray(_right(made.continuation, made).all(-1))


def token_accuracy(made: Completed) -> _Floats:
    """The share of positions where the continuation has the suffix's token (Eq. 4).

    A position counts regardless of earlier mistakes; see `correct_length` for the opposite.
    """
    return np.asarray(_right(made.continuation, made).mean(-1))


def teacher_forced_accuracy(made: Completed) -> _Floats:
    """The share of positions where the argmax given the true suffix is its token."""
    return np.asarray(_right(made.teacher_forced, made).mean(-1))


def correct_length(made: Completed) -> NDArray[np.integer[Any]]:
    """How many tokens are right before the first wrong one; exact match at k is "k or more"."""
    return np.asarray(np.cumprod(_right(made.continuation, made), axis=-1).sum(-1))


def extraction_strength(made: Completed) -> _Floats:
    """1 - k*/S, k* the first position from which on all argmaxes are right; no match gives 0.

    It is thus the longest final share of the suffix that the model completes given all before it.
    Published code gives 1/S or more even if the last token is wrong.
    """
    backwards = _right(made.teacher_forced, made)[..., ::-1]
    return np.asarray(np.cumprod(backwards, axis=-1).mean(-1))


def lowest_mean(values: _Floats) -> _Floats:
    """The mean of the lowest 20% of (…, S): of floor(0.2 S) values, but at least one."""
    count = max(1, int(LOWEST * values.shape[-1]))
    lowest = np.partition(values.astype(np.float64), count - 1, axis=-1)[..., :count]
    return np.asarray(lowest.mean(-1))


def standardized(made: Completed) -> _Floats:
    """(V, N, S), (log p + H) / σ; 0 where σ is 0, since only one token is possible then.

    -H and σ are mean and standard deviation of log p of a token drawn from the distribution.
    """
    off = made.log_prob.astype(np.float64) + made.entropy
    spread = made.spread.astype(np.float64)
    return np.divide(off, spread, out=np.zeros_like(off), where=spread > 0)


def loss_per_zlib_byte(made: Completed) -> _Floats:
    """Mean loss over the suffix, divided by the bytes of its text compressed by zlib; NaN without.

    The bytes are those of ``zlib.compress`` of the UTF-8 text at its default level.
    """
    if made.texts is None:
        return np.full(made.log_prob.shape[:2], np.nan)
    size = [len(zlib.compress(text.encode())) for text in made.texts]
    return np.asarray(-_mean(made.log_prob) / np.array(size))


def edit_distance(made: Completed) -> _Floats:
    """Levenshtein distance of continuation and suffix in tokens, divided by S."""
    from rapidfuzz.distance import Levenshtein

    return _of_pairs(made, Levenshtein.normalized_distance, 0.0)


def rouge_l(made: Completed) -> _Floats:
    """Tokens of the longest common subsequence, divided by S.

    Continuation and suffix are equally long, so precision, recall and F of ROUGE-L are equal.
    """
    from rapidfuzz.distance import LCSseq

    return _of_pairs(made, LCSseq.normalized_similarity, 1.0)


def longest_common_substring(made: Completed) -> NDArray[np.integer[Any]]:
    """Tokens of the longest run that continuation and suffix share, wherever it stands in each."""
    run = np.zeros(made.continuation.shape, np.uint16)  # of runs that end at i and, each, at j
    longest = np.zeros(made.continuation.shape[:2], np.uint16)
    for i in range(made.suffix.shape[1]):
        same = made.continuation == made.suffix[:, i, None]
        run[..., 1:] = run[..., :-1].copy() + 1
        run[..., 0] = 1
        run *= same
        np.maximum(longest, run.max(-1), out=longest)
    return longest


def bleu(made: Completed) -> _Floats:
    """BLEU-4 of the continuation, in tokens of the model, without smoothing.

    It is thus 0 if no four tokens in a row are shared. For suffixes of fewer than four tokens, the
    longest n-grams are whole suffixes. `Ippolito et al.` call a text approximately memorized above
    0.75, where smoothing makes no difference.
    """
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(tokenize="none", smooth_method="none", effective_order=True, force=True)

    def score(one: Sequence[int], other: Sequence[int]) -> float:
        texts = (" ".join(map(str, tokens)) for tokens in (one, other))
        return float(scorer.sentence_score(next(texts), [next(texts)]).score) / 100

    order = min(4, made.suffix.shape[1])
    return _of_pairs(made, score, 1.0, longest_common_substring(made) >= order)


def _right(tokens: NDArray[np.int64], made: Completed) -> NDArray[np.bool_]:
    return np.asarray(tokens == made.suffix)


def _sum(values: _Floats) -> _Floats:
    return np.asarray(values.sum(-1, dtype=np.float64))


def _mean(values: _Floats) -> _Floats:
    return np.asarray(values.mean(-1, dtype=np.float64))


def _of_pairs(
    made: Completed,
    score: Callable[[Sequence[int], Sequence[int]], float],
    perfect: float,
    among: NDArray[np.bool_] | bool = True,
) -> _Floats:
    """(V, N) scores of continuation and suffix; `perfect` if they are equal, 0 outside `among`."""
    equal = exact_match(made)
    scores = np.where(equal, perfect, 0.0)
    at = np.nonzero(made.known & ~equal & among)
    pairs = zip(made.continuation[at].tolist(), made.suffix[at[1]].tolist(), strict=True)
    scores[at] = [score(*pair) for pair in pairs]
    return scores


_PAPER = "arXiv 2501.05078"
METRICS: tuple[Metric, ...] = (
    Metric(
        "exact_match", "the greedy continuation is the suffix", exact_match, pl.Boolean, "truth",
        0, 1, True, f"{_PAPER}, Eq. 3", aggregate="rate",
    ),
    Metric(
        "token_accuracy", "equal positions of continuation and suffix", token_accuracy, pl.Float64,
        "share", 0, 1, True, f"{_PAPER}, Eq. 4", "greedy continuation",
    ),
    Metric(
        "completion_entropy", "entropy summed over the suffix", lambda made: _sum(made.entropy),
        pl.Float64, "nats", 0, FINITE, False, f"{_PAPER}, Eq. 5",
    ),
    Metric(
        "correct_length", "right tokens before the first wrong one, 0 to S", correct_length,
        pl.UInt16, "tokens", 0, FINITE, True, "arXiv 2202.07646",
    ),
    Metric(
        "teacher_forced_accuracy", "right argmaxes given the true suffix", teacher_forced_accuracy,
        pl.Float64, "share", 0, 1, True, "arXiv 2205.10770",
    ),
    Metric(
        "suffix_log_prob", "log p of the suffix at temperature 1", lambda made: _sum(made.log_prob),
        pl.Float64, "nats", -FINITE, 0, True, "arXiv 2410.19482",
    ),
    Metric(
        "suffix_log_prob_top_40", "the same under top-k 40; -inf if a rank is above 40",
        lambda made: _sum(made.log_prob_top_40), pl.Float64, "nats", -math.inf, 0, True,
        "arXiv 2410.19482", aggregate=None,
    ),
    Metric(
        "mean_log_prob", "log p a token", lambda made: _mean(made.log_prob),
        pl.Float64, "nats", -FINITE, 0, True, "arXiv 2012.07805",
    ),
    Metric(
        "min_k", "Min-K%: mean log p of the lowest 20% of the suffix's tokens",
        lambda made: lowest_mean(made.log_prob), pl.Float64, "nats", -FINITE, 0, True,
        "arXiv 2310.16789",
    ),
    Metric(
        "min_k_plus_plus", "Min-K%++: mean of the lowest 20% of (log p + H) / σ, of the suffix",
        lambda made: lowest_mean(standardized(made)), pl.Float64, "standard deviations", -FINITE,
        FINITE, True, "arXiv 2404.02936",
    ),
    Metric(
        "loss_per_zlib_byte", "mean loss, over the bytes of the text compressed by zlib",
        loss_per_zlib_byte, pl.Float64, "nats a byte", 0, FINITE, False, "arXiv 2012.07805", "text",
    ),
    Metric(
        "worst_rank", "the highest rank of a token of the suffix, from 1",
        lambda made: made.rank.max(-1), pl.UInt32, "rank", 1, FINITE, False, "arXiv 2410.19482",
    ),
    Metric(
        "extraction_strength", "1 - k*/S, from position k* on all argmaxes are right; none: 0",
        extraction_strength, pl.Float64, "share", 0, 1, True, "arXiv 2506.12618",
    ),
    Metric(
        "edit_distance", "Levenshtein distance of continuation and suffix, over S", edit_distance,
        pl.Float64, "share", 0, 1, False, "arXiv 2210.17546", "greedy continuation",
    ),
    Metric(
        "longest_common_substring", "longest run shared by continuation and suffix",
        longest_common_substring, pl.UInt16, "tokens", 0, FINITE, True, "arXiv 2311.17035",
        "greedy continuation",
    ),
    Metric(
        "rouge_l", "longest common subsequence of continuation and suffix, over S", rouge_l,
        pl.Float64, "share", 0, 1, True, "aclanthology.org/W04-1013", "greedy continuation",
    ),
    Metric(
        "bleu", "BLEU-4 of the continuation in tokens, without smoothing", bleu, pl.Float64,
        "share", 0, 1, True, "arXiv 2210.17546", "greedy continuation",
    ),
)  # fmt: skip
"""All metrics, in the order of the table's columns; those of `mine/metrics.py` come last."""

try:  # found where the study runs, in the project's own folder
    from mine.metrics import METRICS as OWN
except ModuleNotFoundError as error:
    if error.name not in ("mine", "mine.metrics"):
        raise
else:
    METRICS += tuple(OWN)
    if twice := {m.name for m in OWN if sum(m.name == each.name for each in METRICS) > 1}:
        raise bad_input(
            "mine/metrics.py",
            ", ".join(sorted(twice)),
            "names that no other metric has",
            "name them otherwise",
        )

MEMORIZATION: Schema = {
    "intervention": string("as in the interventions table"),
    "sample_id": uint32("as in the samples table"),
    "split": string("as in the samples table"),
    **{metric.name: metric.column for metric in METRICS},
    "min_margin": float32("logits, smallest top-2 gap on the greedy path"),
    "continuation": uint32s("S greedy token ids; null: not decoded to the end", nullable=True),
    "decoded": boolean(
        "whether the sample is one of those whose continuations are decoded to the end"
    ),
}
"""The schema of ``memorization/MODEL.parquet``: the keys of a row, the metrics, and the rest."""

_TYPES = {pl.Boolean: np.bool_, pl.Float64: np.float64, pl.UInt16: np.uint16, pl.UInt32: np.uint32}


def computed(made: Completed) -> dict[str, NDArray[Any]]:
    """Metric -> its values (V, N), in the type of its column; see `unknown` for nulls."""
    return {m.name: m.function(made).astype(_TYPES[m.dtype]) for m in METRICS}


def unknown(known: pl.Expr) -> list[pl.Expr]:
    """The metrics that may be unknown, null where they are: `known` is the continuation's end."""
    of_text = [pl.col(m.name).fill_nan(None) for m in METRICS if m.needs == "text"]
    greedy = [m.name for m in METRICS if m.needs == "greedy continuation"]
    return [*of_text, pl.when(known).then(pl.col(greedy)).name.keep()]
