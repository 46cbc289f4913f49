"""The evidence of one model, or of the seeds of one recipe, as numbers with intervals.

A quantity that a claim compares is a sum of multiples of rows of the evidence, written as terms:
data, from which `Measured.estimate` computes a number with its interval at any level.

Source: for sums of independent estimates Zou and Donner (2008), Statistics in Medicine 27,
1693-1702.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import AT_K, NUMBERS, interval
from pipeline.analysis.statistics import pooled, reach
from pipeline.analysis.views import block_range
from pipeline.interventions.interventions import IDENTITY


class Estimate(NamedTuple):
    """A number and its interval; an end may be infinite."""

    value: float
    low: float
    high: float


class Row(NamedTuple):
    """A row of the evidence of one model; see `evidence` for the columns."""

    task: str
    metric: str
    quantity: str
    over: str
    k: int | None = None


Terms = Sequence[tuple[float, Row]]
"""Factors and rows, whose products are added."""


def scaled(factor: float, terms: Terms) -> Terms:
    """The terms, each times the factor."""
    return [(factor * one, row) for one, row in terms]


def combined(
    parts: Sequence[tuple[float, Estimate]], offset: float = 0.0, *, related: bool = False
) -> Estimate:
    """The sum of factors times estimates, and an offset; of one alone, the estimate itself.

    Where the errors may be correlated, as for the same samples, they are `related`: the distances
    to the ends of the intervals are added, which is never too narrow. Otherwise the estimates are
    from unrelated samples or documents, and the squares of the distances are added.
    """
    if len(parts) == 1 and (parts[0][0], offset) == (1, 0):
        return parts[0][1]  # rounding would move its ends
    value = offset + math.fsum(factor * part.value for factor, part in parts)
    below = [f * (part.value - (part.low if f > 0 else part.high)) for f, part in parts]
    above = [f * ((part.high if f > 0 else part.low) - part.value) for f, part in parts]
    low, high = (
        math.fsum(distances) if related else math.hypot(*distances) for distances in (below, above)
    )
    return Estimate(value, value - low, value + high)


class Measured:
    """The evidence of one model, or of several seeds of one recipe together.

    Args:
        rows: of the evidence, of one recipe and edit.
        metric: ``acc`` or ``acc_norm``; benchmarks without it use ``acc``.
        late, early: the ranges of blocks that count as such, see `views.block_range`.
    """

    def __init__(
        self,
        rows: pl.DataFrame,
        metric: str = "acc",
        late: str = "late",
        early: str = "early",
    ) -> None:
        self.name: str = rows["recipe"][0]
        self.family: str = rows["family"][0]
        self.parameters: int | None = rows["parameters"][0]
        self.seeds = rows["model"].unique(maintain_order=True).to_list()
        self.shown = views.seeds_name(self.name, len(self.seeds))
        key = ("model", *Row._fields)
        self._rows = {row[:6]: row[6:] for row in rows.select(*key, *NUMBERS).iter_rows()}
        blocks = rows.filter(kind="block").select("block", "over").unique().sort("block")
        self.blocks = dict(blocks.filter(pl.col("block") > 0).iter_rows())
        self.late, self.early = (
            {f"block {b}": over for b, over in blocks.iter_rows() if b in among}
            for among in (block_range(rows["n_blocks"][0], name) for name in (late, early))
        )
        self.quartiles = sorted(rows.filter(kind="quartile")["over"].unique())
        self.perplexities = sorted(rows.filter(quantity="log_ratio")["task"].unique())
        self.metrics: Mapping[str, str] = self._above_chance(rows, metric)

    def _above_chance(self, rows: pl.DataFrame, metric: str) -> Mapping[str, str]:
        """Task -> metric of the benchmarks in which every seed is above chance."""
        kept = rows.filter(quantity="kept").filter(pl.col("task") != views.MEMORIZATION)
        return {
            task: name
            for task, metrics in kept.group_by("task").agg("metric").sort("task").iter_rows()
            if self._of_every_seed(task, name := metric if metric in metrics else "acc")
        }

    def recites(self) -> bool:
        """Whether there is exact match to lose, in every seed."""
        return self._of_every_seed(views.MEMORIZATION, "exact_match")

    def _of_every_seed(self, task: str, metric: str) -> bool:
        known = (task, metric, "kept")
        return {key[0] for key in self._rows if key[1:4] == known} == set(self.seeds)

    def has(self, terms: Terms) -> bool:
        """Whether every seed has each row; False without terms."""
        rows = ((seed, *row) for seed in self.seeds for _, row in terms)
        return bool(terms) and all(row in self._rows for row in rows)

    def estimate(
        self, terms: Terms, level: float, offset: float = 0.0, *, related: bool = False
    ) -> Estimate:
        """The sum of the terms, computed for each seed and pooled over the seeds.

        See `statistics.pooled`. The interval between the seeds is not widened for the number of
        conditions; three seeds could then decide nothing. So the stated error rate is about samples
        and documents; other seeds can only make a verdict undecided more often.
        """
        seeds, unknown = [], (math.nan, None, 0.0, 0.0, None, None)
        for seed in self.seeds:
            rows = [(factor, self._rows.get((seed, *row), unknown)) for factor, row in terms]
            parts = [(factor, Estimate(row[0], *interval(row, level))) for factor, row in rows]
            seeds.append(combined(parts, offset, related=related))
        return Estimate(*pooled(*zip(*seeds, strict=True)))

    def memory(self, over: str, metric: str = "exact_match", k: int | None = None) -> Terms:
        """The share kept of exact match, or another metric, of memorized samples.

        With k it is that of the first k tokens.
        """
        return [(1, Row(views.MEMORIZATION, metric if k is None else AT_K, "kept", over, k))]

    def ability(self, task: str, over: str, quantity: str = "kept") -> Terms:
        """The share kept of a benchmark."""
        return [(1, Row(task, self.metrics.get(task, "acc"), quantity, over))]

    def abilities(self, over: str, tasks: Sequence[str] | None = None) -> Terms:
        """The mean share kept over the benchmarks, whose documents are independent."""
        tasks = list(self.metrics) if tasks is None else tasks
        return [term for task in tasks for term in scaled(1 / len(tasks), self.ability(task, over))]

    def gap(self, over: str, metric: str = "exact_match", k: int | None = None) -> Terms:
        """Memory loss minus ability loss; no terms without a benchmark."""
        if not self.metrics:
            return []
        return [*self.abilities(over), *scaled(-1, self.memory(over, metric, k))]

    def needed(
        self, term: tuple[float, Row], level: float, offset: float, compare: str, threshold: float
    ) -> int | None:
        """The number of independent samples without which no outcome could support a condition.

        The arguments are as of a `claims.Condition`, with the level of its interval.

        Returns:
            The least number at which the best outcome possible would be supported; None: the
            samples are enough, or no number would be.
        """
        factor, row = term
        _, _, n, scale, *limits = self._rows[self.seeds[0], *row]
        if None in limits:
            return None
        ends = [factor * end + offset for end in limits]
        room = threshold - min(ends) if compare == "at_most" else max(ends) - threshold
        found = n
        while 0 < room < reach(0.0, found, abs(factor) * scale, level):
            found = math.floor(found) + 1
        return None if found == n else found


def measured_models(evidence: pl.DataFrame, edit: str = IDENTITY, *choices: str) -> list[Measured]:
    """The models of the evidence in its order, the seeds of a recipe as one.

    `choices` are the metric of the benchmarks, and the late and the early blocks, of `Measured`.
    """
    parts = evidence.filter(edit=edit).group_by("recipe", maintain_order=True)
    return [Measured(rows, *choices) for _, rows in parts]
