"""Checks once, before the results are used, that the tables of a study are complete and possible.

Each rule excludes a state that is impossible for any model: a rate above one, an exact match with a
wrong token, a bypass that changed nothing, an exceeded bound. A broken rule means a mistake in the
computation or a damaged file, so the stage ends and reports all broken rules at once.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from pipeline.analysis.displacement import DISPLACEMENT
from pipeline.analysis.evidence import EVIDENCE
from pipeline.analysis.measured import ModelTables, grid_problems, read_tables
from pipeline.analysis.rows import SUMMARY
from pipeline.analysis.verdicts import VALUES, VERDICTS
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.chosen import chosen
from pipeline.measure.metrics import MEMORIZATION, METRICS
from pipeline.samples.frame import of_each_split
from pipeline.theory import columns
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem

GRAIN = 1e-6
"""Tolerance for rounding of floats."""

_REMEDY = "delete the table and run the stage that writes it; if it comes again, report it"


def _least(column: str, least: float = 0) -> pl.Expr:
    return pl.col(column).is_between(least, math.inf, closed="left")


def _between(value: str, low: str, high: str) -> pl.Expr:
    """An interval that is known holds its value; ends that are infinite are none."""
    low_end, high_end = (pl.col(end).fill_null(pl.col(value)) for end in (low, high))
    ordered = (low_end <= pl.col(value) + GRAIN) & (pl.col(value) <= high_end + GRAIN)
    known = pl.all_horizontal(pl.col(name).is_nan().not_() for name in (value, low, high))
    return pl.col(value).is_null() | (ordered & known.fill_null(True))


_VALUE, _EXACT, _RIGHT = map(pl.col, ("value", "exact_match", "correct_length"))
_CONTINUATION, _SUFFIX = pl.col("continuation"), pl.col("suffix")
_UNKNOWN, _LENGTH = _CONTINUATION.is_null(), _SUFFIX.list.len()

_FINITE = {"the value is finite": _VALUE.is_finite()}
_ERROR = {"the standard error is finite and not negative": _least("stderr").fill_null(True)}
_CHANGES = {"changes are finite and not negative": _least("change")}

RULES: Mapping[str, Mapping[str, pl.Expr]] = {
    "memorization": {
        **{f"{each.name} is possible": each.possible() for each in METRICS},
        "min_margin is finite and not negative": _least("min_margin"),
        "the continuation is known where it was decoded, or is the suffix": ~_UNKNOWN
        | ~(pl.col("decoded") | _EXACT),
        "the continuation is as long as the suffix": _UNKNOWN
        | (_CONTINUATION.list.len() == _LENGTH),
        "exact_match says that continuation and suffix are equal": _UNKNOWN
        | ((_CONTINUATION == _SUFFIX) == _EXACT),
        "exact_match says that correct_length is the whole suffix": (_RIGHT == _LENGTH) == _EXACT,
        **{
            f"{each.name} is known where the continuation is": pl.col(each.name).is_null()
            == _UNKNOWN
            for each in METRICS
            if each.needs == "greedy continuation"
        },
        "exact_match says that token_accuracy is 1": _UNKNOWN
        | ((pl.col("token_accuracy") == 1) == _EXACT),
        "suffix_log_prob_top_40 is no less than suffix_log_prob, or no suffix comes out": (
            pl.col("suffix_log_prob_top_40") + GRAIN * _LENGTH >= pl.col("suffix_log_prob")
        )
        | (pl.col("worst_rank") > 40),
        "token_accuracy counts the correct_length": _UNKNOWN
        | (pl.col("token_accuracy") + GRAIN >= _RIGHT / _LENGTH),
    },
    "tokens": {
        "log_prob is finite and not positive": pl.col("log_prob").is_between(-3e38, GRAIN),
        "entropy and margin are finite and not negative": _least("entropy", -GRAIN)
        & _least("margin"),
        "the likeliest token is of rank 1": (pl.col("greedy") != pl.col("token"))
        | (pl.col("rank") == 1),
    },
    "displacement": {
        "displacement is finite and not negative": _least("first")
        & _least("others").fill_null(True),
        "the baseline is where it is": pl.col("block").is_not_null()
        | ((pl.col("first") == 0) & (pl.col("others").fill_null(0) == 0)),
    },
    "attention": {
        f"{name} is one minus a cosine": pl.col(name).is_between(-GRAIN, 2 + GRAIN).fill_null(True)
        for name in ("first", "others")
    },
    "benchmarks": {
        **_FINITE,
        "an accuracy is a share": _VALUE.is_between(0, 1)
        | ~pl.col("metric").str.starts_with("acc"),
        "a perplexity is 1 or more": (_VALUE >= 1) | ~pl.col("metric").str.ends_with("perplexity"),
        **_ERROR,
        "there are documents": pl.col("n") > 0,
    },
    "documents": _FINITE,
    "divergence": {
        **_CHANGES,
        "divergences are finite and not negative": _least("kl", -GRAIN).fill_null(True),
    },
    "bounds": {
        **_CHANGES,
        "no corrected bound is exceeded": ~pl.col("violated"),
        "no corrected bound is exceeded one block on": ~pl.col("next_violated").fill_null(False),
    },
    "blocks": {},
    "summary": {
        "the value is a number": _VALUE.is_not_nan(),
        "the interval holds the value": _between("value", "low", "high"),
        "the interval holds the difference": _between(
            "difference", "difference_low", "difference_high"
        ),
        "a p-value is a share": pl.col("p_value").is_between(0, 1).fill_null(True),
    },
    "evidence": {
        **_FINITE,
        **_ERROR,
        "the limits are in order": _between("most", "least", "most"),
    },
    "verdicts": {
        "the interval holds the estimate": _between("estimate", "low", "high"),
        "the verdict is one of three": pl.col("verdict").is_in(VALUES).fill_null(True),
    },
}
"""Table -> rule -> true where a row satisfies it; ``suffix`` is the sample's."""

NUMBERS = {"summary": SUMMARY, "evidence": EVIDENCE, "verdicts": VERDICTS}
"""Name of a table from which figures and pages are made -> its schema."""


def check_results(
    models: Sequence[tuple[str, str]],
    data: Path,
    divergence_samples: int | None,
    *,
    benchmarked: bool = True,
) -> dict[str, dict[str, int]]:
    """Check every table in a study's folder, ``data/STUDY``, that holds results.

    Of the models, (name, family). The theorems were measured on this number of samples of each
    split; None: they were not.

    Returns:
        Model -> table -> rows that were checked.

    Raises:
        InputError: a table is missing or does not fit, a grid has holes, or a rule is broken; all
            at once.
    """
    problems, checked = list[Problem](), {}
    for name, family in models:
        try:
            measured = read_tables(data, name, family, benchmarked=benchmarked)
            problems += grid_problems(measured)
            checked[name] = _check_model(measured, data, divergence_samples, problems)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return checked


def read_numbers(data: Path, *others: str) -> list[pl.DataFrame]:
    """The summary and the evidence of a study, and others of `NUMBERS`, checked.

    Raises:
        InputError: a table is missing or does not fit its schema; no rows, a model of the summary
            without evidence, or a broken rule.
    """
    names = "summary", "evidence", *others
    read = [tables.read(data / f"{name}.parquet", NUMBERS[name]) for name in names]
    problems = list[Problem]()
    for name, table in zip(names, read, strict=True):
        problems += _broken(f"the {name}", [table], RULES[name])
    summary, evidence, *_ = read
    if summary.is_empty():
        problems.append(Problem("the summary", "no row", "one or more", _REMEDY))
    moved = summary.filter(metric=DISPLACEMENT)["model"].unique(maintain_order=True)
    if lost := [model for model in moved if model not in set(evidence["model"])]:
        expected = "every model whose displacement was measured"
        problems.append(Problem("the evidence", f"without {', '.join(lost)}", expected, _REMEDY))
    if problems:
        raise InputError(*problems)
    return read


def _check_model(
    measured: ModelTables, data: Path, divergence_samples: int | None, problems: list[Problem]
) -> dict[str, int]:
    """Append the problems of one model's tables to `problems`; returns the rows of each table."""
    name, counts = measured.name, {}
    for what, frames, height, expected in _tables_of(measured, data, divergence_samples):
        problems += _broken(f"{what} of {name}", frames, RULES[what])
        if expected not in (None, height):
            wanted = f"{expected}, for its samples, interventions and {measured.n_blocks} blocks"
            problems.append(Problem(f"{what} of {name}, rows", f"{height}", wanted, _REMEDY))
        if what != "attention":
            counts[what] = height
    problems += _without_effect(f"memorization of {name}", measured.memorization, "suffix_log_prob")
    # a bypass may leave the correctness of a few answers unchanged, but never every likelihood
    every_one_right_or_wrong = pl.col("value").is_in([0.0, 1.0]).all().over("task", "metric")
    graded = measured.documents.filter(~every_one_right_or_wrong)
    if graded.height:
        problems += _without_effect(f"documents of {name}", graded, "value")
    return counts


def _tables_of(
    measured: ModelTables, data: Path, divergence_samples: int | None
) -> Iterator[tuple[str, Iterable[pl.DataFrame], int, int | None]]:
    """Each table: what it is, as in `RULES`, its frames, its rows, and how many it must have."""
    name, samples, blocks = measured.name, measured.samples, measured.n_blocks
    suffixes = samples.select("sample_id", suffix=pl.col("tokens").list.tail("suffix_length"))
    completed = tables.batches(data / "memorization" / f"{name}.parquet", MEMORIZATION)
    with_suffix = (rows.join(suffixes, on="sample_id", maintain_order="left") for rows in completed)
    yield "memorization", with_suffix, measured.memorization.height, None
    some, planned = chosen(samples), measured.interventions.height
    suffix_tokens = int(some["suffix_length"].cast(pl.Int64).sum())
    kept: list[tuple[str, pl.DataFrame, int | None]] = [
        ("tokens", measured.tokens, planned * suffix_tokens),
        ("displacement", measured.displacement, planned * some.height),
        ("attention", measured.attention_change, blocks * some.height),
    ]
    if measured.benchmarks is not None:
        kept += [("benchmarks", measured.benchmarks, None), ("documents", measured.documents, None)]
    if divergence_samples is not None:
        n = of_each_split(samples, ("memorized", "control"), divergence_samples).height
        heights = n * blocks * (blocks + 3) // 2, n * blocks, blocks
        for (end, schema), height in zip(columns.DIVERGENCE.items(), heights, strict=True):
            table = tables.read(data / "divergence" / f"{name}{end}.parquet", schema)
            kept.append((end.removeprefix(".") or "divergence", table, height))
    yield from ((what, [frame], frame.height, expected) for what, frame, expected in kept)


def _broken(
    what: str, frames: Iterable[pl.DataFrame], rules: Mapping[str, pl.Expr]
) -> list[Problem]:
    """A problem for each rule that some row breaks; it names the first such row."""
    broken: dict[str, tuple[int, Mapping[str, object]]] = {}
    height = 0
    for frame in frames:
        height += frame.height
        for rule, kept in rules.items():
            bad = frame.filter(~kept.fill_null(False))
            if bad.height:
                count, first = broken.get(rule, (0, bad.row(0, named=True)))
                broken[rule] = count + bad.height, first
    problems = []
    for rule, (count, first) in broken.items():
        values = (f"{key} {value}" for key, value in first.items() if not isinstance(value, list))
        got = f"{count} of {height} rows do not; the first: {', '.join(values)}"
        problems.append(Problem(f"{what}: {rule}", got, "every row does", _REMEDY))
    return problems


def _without_effect(what: str, frame: pl.DataFrame, column: str) -> list[Problem]:
    """A problem if there are interventions under which no row differs from the baseline."""
    keys = [key for key in ("sample_id", "task", "doc_id", "metric") if key in frame.columns]
    baseline = frame.filter(intervention=BASELINE.name).select(*keys, unmodified=column)

    def differs(name: str) -> bool:
        rows = frame.filter(intervention=name).join(baseline, on=keys)
        return bool((rows[column] != rows["unmodified"]).any())

    names = frame["intervention"].unique(maintain_order=True)
    same = [name for name in names if name != BASELINE.name and not differs(name)]
    if not same:
        return []
    return [
        Problem(
            f"{what}: an intervention changes something",
            f"{', '.join(same)}: every {column} is the baseline's",
            "a different value in at least one row: the bypass had no effect",
            _REMEDY,
        )
    ]
