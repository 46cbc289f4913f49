"""The metrics against hand-computed values and independent implementations, on 200 rows."""

import difflib
import math
import zlib
from collections import Counter
from itertools import takewhile
from operator import eq

import numpy as np
import polars as pl
import pytest
import torch

from pipeline.measure.metrics import METRICS, Completed, computed, unknown
from tests.measure.sampling import distances

V, N, S, VOCABULARY = 4, 50, 17, 61


def completed(continuation, suffix, forced=None, **fields):
    """What `Completed` holds for a few rows, with numbers of a perfectly sure model."""
    made, suffix = np.array([continuation]), np.array(suffix)
    zero = np.zeros(made.shape)
    known = {"entropy": zero, "log_prob": zero, "log_prob_top_40": zero, "spread": zero}
    given = {**known, "rank": np.ones(made.shape, np.int32), **fields}
    return Completed(suffix, made, made if forced is None else np.array([forced]), **given)


@pytest.fixture(scope="module")
def logits():
    """(V, N, S, vocabulary), from flat to sharp."""
    torch.manual_seed(0)
    scale = torch.logspace(-1, 1.3, N)[:, None, None]
    return torch.randn(V, N, S, VOCABULARY).double() * scale


@pytest.fixture(scope="module")
def rows(logits):
    """200 rows: distributions, and continuations that are right here and there."""
    random = np.random.default_rng(0)
    forced = logits.argmax(-1)
    suffix = torch.where(torch.rand(N, S) < 0.9, forced[0], torch.randint(VOCABULARY, (N, S)))
    suffix[0] = forced[0, 0]
    log_probs = logits.log_softmax(-1)
    target = suffix.expand(V, N, S)[..., None]
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    square = (log_probs.exp() * log_probs.square()).sum(-1)
    kept = logits.topk(40)
    among = kept.indices == target
    top = (kept.values.log_softmax(-1).masked_fill(~among, -torch.inf)).amax(-1)
    keep = random.random((V, N, S)) < random.random((V, N, 1))
    continuation = np.where(keep, suffix, random.integers(VOCABULARY, size=(V, N, S)))
    continuation[:, ::5] = np.roll(np.broadcast_to(suffix, (V, N, S)), 2, axis=-1)[:, ::5]
    return Completed(
        suffix.numpy(),
        continuation,
        forced.numpy(),
        entropy.numpy(),
        log_probs.gather(-1, target)[..., 0].numpy(),
        top.numpy(),
        (1 + (logits > logits.gather(-1, target)).sum(-1)).int().numpy(),
        (square - entropy.square()).clamp_min(0).sqrt().numpy(),
        [" ".join(f"wörd{token}" for token in row) for row in suffix.tolist()],
    )


def each_row(function):
    """An implementation of one row, (v, n) -> number, over all rows."""
    return np.array([[function(v, n) for n in range(N)] for v in range(V)])


def min_k(values):
    """After the authors' code: sorted, the first fifth."""
    return float(np.mean(sorted(values)[: int(len(values) * 0.2)]))


def longest_tail(right):
    return next(1 - k / len(right) for k in range(len(right) + 1) if all(right[k:]))


def subsequence(one, other):
    row = [0] * (len(other) + 1)
    for a in one:
        above, row = row, [0]
        for j, b in enumerate(other, start=1):
            row.append(above[j - 1] + 1 if a == b else max(row[-1], above[j]))
    return row[-1]


def papineni(made, reference):
    """BLEU-4 of one sentence of the reference's length, from its definition."""
    logs = 0.0
    for n in range(1, 5):
        ours, theirs = (
            Counter(tuple(x[i : i + n]) for i in range(len(x) - n + 1)) for x in (made, reference)
        )
        hits = sum((ours & theirs).values())
        if not hits:
            return 0.0
        logs += math.log(hits / ours.total())
    return math.exp(logs / 4)


def test_every_metric_equals_an_independent_one(rows, logits) -> None:
    found = computed(rows)
    suffix, made = rows.suffix.tolist(), rows.continuation.tolist()
    edits = [distances(rows.continuation[:, n], rows.suffix[n])["levenshtein"] for n in range(N)]

    def plus_plus(v, n):
        log_probs = logits[v, n].log_softmax(-1)
        p = log_probs.exp()
        mean = (p * log_probs).sum(-1)
        deviation = ((p * log_probs**2).sum(-1) - mean**2).sqrt()
        return min_k(((torch.from_numpy(rows.log_prob[v, n]) - mean) / deviation).tolist())

    def loss_over_zlib(v, n):
        chosen = torch.tensor(suffix[n])
        loss = torch.nn.functional.cross_entropy(logits[v, n], chosen).item()
        return loss / len(zlib.compress(bytes(rows.texts[n], "utf-8")))

    def top_40(v, n):
        total = 0.0
        for t, token in enumerate(suffix[n]):
            kept = dict(zip(*(x.tolist() for x in reversed(logits[v, n, t].topk(40))), strict=True))
            if token not in kept:
                return -math.inf
            total += kept[token] - math.log(math.fsum(map(math.exp, kept.values())))
        return total

    def matcher(v, n):
        blocks = difflib.SequenceMatcher(None, made[v][n], suffix[n], autojunk=False)
        return blocks.find_longest_match().size

    def accuracy(tokens, n):
        return sum(map(eq, tokens, suffix[n])) / S

    def right_before_the_first_wrong(v, n):
        return len(list(takewhile(lambda two: eq(*two), zip(made[v][n], suffix[n], strict=True))))

    independent = {
        "exact_match": lambda v, n: made[v][n] == suffix[n],
        "token_accuracy": lambda v, n: accuracy(made[v][n], n),
        "teacher_forced_accuracy": lambda v, n: accuracy(rows.teacher_forced[v, n].tolist(), n),
        "correct_length": right_before_the_first_wrong,
        "suffix_log_prob": lambda v, n: math.fsum(rows.log_prob[v, n]),
        "suffix_log_prob_top_40": top_40,
        "mean_log_prob": lambda v, n: math.fsum(rows.log_prob[v, n]) / S,
        "completion_entropy": lambda v, n: math.fsum(rows.entropy[v, n]),
        "min_k": lambda v, n: min_k(rows.log_prob[v, n]),
        "min_k_plus_plus": plus_plus,
        "loss_per_zlib_byte": loss_over_zlib,
        "worst_rank": lambda v, n: max(
            logits[v, n, t].argsort(descending=True).tolist().index(token) + 1
            for t, token in enumerate(suffix[n])
        ),
        "extraction_strength": lambda v, n: longest_tail(
            [a == b for a, b in zip(rows.teacher_forced[v, n].tolist(), suffix[n], strict=True)]
        ),
        "edit_distance": lambda v, n: edits[n][v] / S,
        "rouge_l": lambda v, n: subsequence(made[v][n], suffix[n]) / S,
        "longest_common_substring": matcher,
        "bleu": lambda v, n: papineni(made[v][n], suffix[n]),
    }
    assert set(independent) == set(found)
    for name, function in independent.items():
        np.testing.assert_allclose(found[name], each_row(function), atol=1e-9, err_msg=name)
        least = 1 if name == "exact_match" else 5
        assert len(np.unique(found[name])) > least, f"{name} hardly varies"
    assert 0 < np.isinf(found["suffix_log_prob_top_40"]).mean() < 1


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_suffixes(length) -> None:
    """BLEU takes the longest n-grams that there are, Min-K% one token at least."""
    suffix = [list(range(length))]
    values = -np.arange(1.0, length + 1)[None, None]
    whole = computed(completed(suffix, suffix, log_prob=values))
    assert whole["bleu"].tolist() == [[1.0]]
    assert whole["min_k"].tolist() == [[-float(length)]]
    wrong = computed(completed([[9] * length], suffix))
    assert wrong["bleu"].tolist() == wrong["rouge_l"].tolist() == [[0.0]]
    assert wrong["edit_distance"].tolist() == [[1.0]]


def test_a_certain_model_has_no_deviation_to_divide_by() -> None:
    assert computed(completed([[1, 2]], [[1, 2]]))["min_k_plus_plus"].tolist() == [[0.0]]


def test_columns_have_their_types_and_nulls_where_nothing_is_known() -> None:
    found = computed(completed([[1, 2], [1, -1]], [[1, 2], [9, 2]]))
    frame = pl.DataFrame({name: values[0] for name, values in found.items()})
    assert dict(frame.schema) == {each.name: each.dtype for each in METRICS}
    told = frame.with_columns(unknown(pl.Series([True, False])))
    for each in METRICS:
        nulls = {"text": 2, "greedy continuation": 1}.get(each.needs, 0)
        assert told[each.name].null_count() == nulls, each.name
        assert told.select(each.possible()).to_series().all(), each.name


def test_an_entry_says_all_that_follows_from_it() -> None:
    names = [each.name for each in METRICS]
    assert len(set(names)) == len(names)
    for each in METRICS:
        assert each.meaning
        assert each.unit
        assert each.source
        assert each.least < each.most
        assert (each.aggregate == "rate") == (each.dtype == pl.Boolean)
        beyond = [] if math.isinf(each.least) else [2 * min(each.least, 0) - 1]
        beyond.append(2 * each.most + 1)
        outside = pl.DataFrame({each.name: [*map(float, beyond), math.nan]})
        assert not outside.select(each.possible()).to_series().any(), each.name
