"""The evidence of a model, or of the seeds of one recipe, as the numbers that claims compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.evidence import block_range
from pipeline.analysis.statistics import reach
from pipeline.analysis.verdicts import Estimate, combined, pooled

Number = Callable[[str, float], Estimate]
"""Maps the name of a model (one of the seeds) and a level to an estimate with its interval."""


@dataclass(frozen=True)
class Setup:
    """The choices on which the verdicts depend.

    Args:
        metric: ``acc`` or ``acc_norm``; benchmarks without it use ``acc``.
        late: the range of blocks that counts as late, see `evidence.block_range`.
    """

    metric: str = "acc"
    late: str = "late"


class Measured:
    """The evidence of one model, or of several seeds of one recipe together."""

    def __init__(self, rows: pl.DataFrame, setup: Setup) -> None:
        self.name: str = rows["recipe"][0]
        self.family: str = rows["family"][0]
        self.parameters: int | None = rows["parameters"][0]
        self._late = block_range(rows["n_blocks"][0], setup.late)
        self._early = block_range(rows["n_blocks"][0], "early")
        self.seeds = rows["model"].unique(maintain_order=True).to_list()
        key = ("model", "task", "metric", "quantity", "over")
        numbers = ("value", "stderr", "n_effective", "scale", "least", "most")
        self._rows = {row[:5]: row[5:] for row in rows.select(*key, *numbers).iter_rows()}
        blocks = rows.filter(kind="block").select("block", "over").unique().sort("block")
        self.blocks = dict(blocks.filter(pl.col("block") > 0).iter_rows())
        self.quartiles = sorted(rows.filter(kind="quartile")["over"].unique())
        self.metrics: dict[str, str] = {}
        overs = rows.filter(pl.col("kind") != "edit")["over"].unique()
        of_tasks = rows.filter(quantity="kept").filter(pl.col("task") != views.MEMORIZATION)
        for task, metrics in of_tasks.group_by("task").agg("metric").sort("task").iter_rows():
            self.metrics[task] = setup.metric if setup.metric in metrics else "acc"
        # a benchmark in which some seed is not above chance is left out
        self.metrics = {
            task: metric
            for task, metric in self.metrics.items()
            if all(self.has(task, metric, "kept", over) for over in overs)
        }
        self.perplexities = sorted(rows.filter(quantity="log_ratio")["task"].unique())

    @property
    def late(self) -> dict[str, str]:
        """Label of each late block -> intervention."""
        return {f"block {b}": over for b, over in self.blocks.items() if b in self._late}

    @property
    def early(self) -> dict[str, str]:
        """The early blocks, likewise."""
        return {f"block {b}": over for b, over in self.blocks.items() if b in self._early}

    def recites(self) -> bool:
        """Whether there is exact match to lose, in every seed."""
        return all(
            any(key[:4] == (seed, views.MEMORIZATION, "exact_match", "kept") for key in self._rows)
            for seed in self.seeds
        )

    def pooled(self, estimate: Callable[[str, float], Estimate], level: float) -> Estimate:
        """An estimate that is made for each seed, over the seeds."""
        return pooled([estimate(seed, level) for seed in self.seeds])

    def row(
        self, seed: str, level: float, task: str, metric: str, quantity: str, over: str
    ) -> Estimate:
        """A row of the evidence; without a standard error its interval is unbounded."""
        key = (seed, task, metric, quantity, over)
        value, stderr, n, scale, least, most = self._rows.get(
            key, (math.nan, None, 0.0, 0.0, None, None)
        )
        half = reach(math.nan if stderr is None else stderr, n, scale, level)
        low = value - half if least is None else max(value - half, least)
        high = value + half if most is None else min(value + half, most)
        return Estimate(value, min(low, value), max(high, value))  # rounding may pass a limit

    def has(self, task: str, metric: str, quantity: str, over: str) -> bool:
        """Whether every seed has such a row."""
        return all((seed, task, metric, quantity, over) in self._rows for seed in self.seeds)

    def memory(self, over: str, quantity: str = "kept", metric: str = "exact_match") -> Number:
        """The share kept of exact match, or of another metric of memorized samples."""
        return lambda seed, level: self.row(seed, level, views.MEMORIZATION, metric, quantity, over)

    def ability(self, task: str, over: str, quantity: str = "kept") -> Number:
        """The share kept of a benchmark."""
        metric = self.metrics.get(task, "acc")
        return lambda seed, level: self.row(seed, level, task, metric, quantity, over)

    def abilities(
        self, over: str, quantity: str = "kept", tasks: Sequence[str] | None = None
    ) -> Number:
        """The mean share kept over the benchmarks, whose documents are independent."""
        names = list(self.metrics) if tasks is None else tasks
        each = [self.ability(task, over, quantity) for task in names]
        return lambda seed, level: combined([(1 / len(each), e(seed, level)) for e in each])

    def gap(self, over: str) -> Number:
        """Memory loss minus ability loss, on equal terms."""
        memory, ability = self.memory(over, "retained"), self.abilities(over, "retained")
        return lambda seed, level: combined([(1, ability(seed, level)), (-1, memory(seed, level))])

    def perplexity(self, task: str, over: str) -> Number:
        """The logarithm of a perplexity's ratio to the baseline's."""
        return lambda seed, level: self.row(
            seed, level, task, views.WORD_PERPLEXITY, "log_ratio", over
        )

    def gaps(self, over: str) -> bool:
        """Whether memory loss and ability loss are both known."""
        known = [self.has(task, m, "retained", over) for task, m in self.metrics.items()]
        known.append(self.has(views.MEMORIZATION, "exact_match", "retained", over))
        return len(known) > 1 and all(known)
