"""Compares two studies, or two versions of one: a page, and a table of every change.

Estimates are matched by model, intervention, split, task, metric, k and copies. The interval of a
difference is made from the intervals of the two estimates as if they were independent; where both
were measured on the same samples it is too wide rather than too narrow.

Source: Newcombe (1998), Statistics in Medicine 17, 873–890, method 10 ("square-and-add").
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure

from pipeline.analysis import views
from pipeline.analysis.rows import SUMMARY
from pipeline.analysis.text import MISSING, slug
from pipeline.report import style
from pipeline.report.figures import figure as styled
from pipeline.report.markup import inline_svg, plain, template
from pipeline.report.numbers import Number, Numbers
from pipeline.report.plots.plot import BLOCKS_LABEL, Plot
from pipeline.workflow import tables
from pipeline.workflow.dag import read_at
from pipeline.workflow.errors import bad_input, run_command, shorten
from pipeline.workflow.files import atomic, write_text

KEY = ("model", *views.SUMMARY_KEY[1:])
"""The columns of the summary by which estimates are matched."""

KINDS = ("block", "edit", "group")
"""Its columns that tell what an intervention is."""

SHOWN_CHANGES = 60
"""Rows of the page's table; all are in changes.csv."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        label: its name on the page, such as ``tiny`` or ``tiny at main``.
        summary: its summary, schema `SUMMARY`.
        determined_by: its inputs and settings, as `tables.provenance` of its tables gives them.
    """

    label: str
    summary: pl.DataFrame
    determined_by: Mapping[str, Any]

    @property
    def slug(self) -> str:
        """The label, as part of a folder's name."""
        return slug(self.label)


def read_sides(before: str, after: str) -> tuple[Side, Side]:
    """Both sides, each as for `read_side`.

    Raises:
        InputError: the two are the same, or what `read_side` raises.
    """
    if before.partition("@")[::2] == after.partition("@")[::2]:
        raise bad_input(
            "comparison",
            f"{shorten(before)} twice",
            "two studies, or two versions of one",
            "name another: STUDY, or STUDY@REVISION",
        )
    return read_side(before), read_side(after)


def read_side(name: str) -> Side:
    """The summary of a study, and what determined it.

    Its name is ``STUDY``, whose summary lies in data/STUDY/; or ``STUDY@REVISION``: as its dvc.lock
    was at that commit, branch or tag, read from DVC's cache or remote.

    Raises:
        InputError: that is no name of a study, there is no such summary, or it does not fit its
            schema.
    """
    study, _, revision = name.partition("@")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", study, re.ASCII):
        raise bad_input(
            shorten(name),
            f"the study {shorten(study)}",
            "letters, digits, dots, hyphens, underscores; a letter or digit first",
            "name a study as its folder in data/ is named",
        )
    path = Path("data") / study / "summary.parquet"
    if not revision:
        if not path.exists():
            raise bad_input(
                name,
                f"no {path}",
                "a study that has been run, or STUDY@REVISION",
                f"run it: {run_command(study)}",
            )
        return Side(study, tables.read(path, SUMMARY), tables.provenance(path))
    try:
        content = read_at(str(path), revision)
    except Exception as error:  # DVC, git and file systems each have their own
        raise bad_input(
            name,
            shorten(f"{type(error).__name__}: {error}", 200),
            f"{path} in the dvc.lock of {revision}, and its content in the cache or a remote",
            "name a revision at which the study had been run; dvc pull fetches from a remote",
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder) / "summary.parquet"
        then.write_bytes(content)
        return Side(f"{study} at {revision}", tables.read(then, SUMMARY), tables.provenance(then))


def write_comparison(before: Side, after: Side, folder: Path) -> None:
    """Write ``index.html``, ``changes.csv`` and ``numbers.json`` into a folder, atomically.

    Raises:
        InputError: the two have no estimate in common.
    """
    changed = changes(before.summary, after.summary)
    if changed.is_empty():
        raise bad_input(
            f"comparison of {before.label} and {after.label}",
            "no estimate in common: models "
            + "; ".join(", ".join(n for n, _ in views.models(s.summary)) for s in (before, after)),
            "two summaries that share a model and what was measured on it",
            "compare two versions of one study, or studies with a common model",
        )
    with atomic(folder, directory=True) as temporary:
        numbers = Numbers()
        write_text(temporary / "index.html", render(before, after, changed, numbers))
        numbers.write(temporary / "numbers.json")
        changed.write_csv(temporary / "changes.csv")


def changes(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Every estimate that both summaries have, with its change.

    Returns:
        The columns of `KEY`, higher_is_better, block, edit, group, ``before`` and ``after`` with
        their ends (``_low``, ``_high``), ``change`` (after minus before), ``change_low`` and
        ``change_high`` (95%; null where one of the two has no interval), ``beyond_chance`` (bool:
        the interval leaves out 0), largest clear changes first.
    """
    ends = ("value", "low", "high")
    left = before.select(*KEY, *KINDS, "higher_is_better", **{f"before_{end}": end for end in ends})
    right = after.select(*KEY, **{f"after_{end}": end for end in ends})
    both = left.join(right, on=KEY, nulls_equal=True).select(pl.exclude(KINDS), *KINDS)
    a, low_a, high_a = (pl.col(f"before_{end}") for end in ends)
    b, low_b, high_b = (pl.col(f"after_{end}") for end in ends)
    low = b - a - ((b - low_b) ** 2 + (high_a - a) ** 2).sqrt()
    high = b - a + ((high_b - b) ** 2 + (a - low_a) ** 2).sqrt()
    made = both.with_columns(change=b - a, change_low=low, change_high=high)
    clear = ((pl.col("change_low") > 0) | (pl.col("change_high") < 0)).fill_null(False)
    size = (pl.col("change") / (pl.col("change_high") - pl.col("change_low"))).abs().fill_nan(0)
    return (
        made.with_columns(beyond_chance=clear)
        .sort(clear, size.fill_null(0), descending=True, maintain_order=True)
        .rename({"before_value": "before", "after_value": "after"})
    )


def render(before: Side, after: Side, changed: pl.DataFrame, numbers: Numbers) -> str:
    """The page as HTML, of the changes as `changes` gives them."""
    clear = changed.filter("beyond_chance")
    shown = clear.head(SHOWN_CHANGES)
    names = [{name for name, _ in views.models(side.summary)} for side in (before, after)]
    counts = {
        "estimates": changed.height,
        "clear": clear.height,
        "by_chance": round(0.05 * changed["change_low"].count()),
        "shown": shown.height,
    }
    return template("compare.html.jinja", numbers).render(
        before=before.label,
        after=after.label,
        **{name: Number(name, value, table="changes") for name, value in counts.items()},
        only=[sorted(names[0] - names[1]), sorted(names[1] - names[0])],
        rows=[_row(i, row) for i, row in enumerate(shown.iter_rows(named=True))],
        plots=_figures(before.label, after.label, changed),
        settings=_settings(before.determined_by, after.determined_by),
    )


def _row(place: int, row: Mapping[str, Any]) -> list[str | Number]:
    one, several = ("try", "tries") if "extractable" in row["metric"] else ("token", "tokens")
    at, copies, category = (row[name] for name in ("k", "copies", "category"))
    what = str(row["metric"]) + (f" at {at} {one if at == 1 else several}" if at else "")
    what += f", {copies} {'copy' if copies == 1 else 'copies'}" if copies is not None else ""
    what += f", {category}" if category is not None else ""
    ends = row["change"], row["change_low"], row["change_high"]
    return [
        row["model"],
        row["intervention"],
        row["task"] if row["split"] is None else f"{row['split']} samples",
        what,
        *(Number(f"changes/{place}/{s}", row[s], table="changes") for s in ("before", "after")),
        Number(f"changes/{place}/change", *ends, "difference", "changes"),
    ]


def _figures(before: str, after: str, changed: pl.DataFrame) -> list[tuple[Markup, dict[str, Any]]]:
    """Exact match by block, before and after, one panel per model; with its words."""
    rows = changed.filter(views.ONE_BLOCK, metric="exact_match", split="memorized")
    if not rows.height:
        return []
    most = Number("", 100 * float(rows["change"].abs().max()), unit="points")  # type: ignore[arg-type]
    plot = Plot(
        name=f"compare-{slug(before)}-{slug(after)}",
        data=rows.sort("model", "block"),
        draw=partial(_draw, before=before, after=after),
        values={"most": most, "before": before, "after": after},
        kind="compare",
    )
    words = plot.words()
    svg = style.as_svg(styled(plot), plot.name)
    return [(inline_svg(svg, "figure-1", plain(words["alt"])), words)]


def _draw(data: pl.DataFrame, before: str, after: str) -> Figure:
    both = pl.concat(
        data.select(
            "model",
            "block",
            label=pl.lit(label),
            value=side,
            low=f"{side}_low",
            high=f"{side}_high",
        )
        for side, label in (("before", before), ("after", after))
    )
    return style.facets(
        both,
        partial(style.lines, line="label", looks=(before, after)),
        labels=(BLOCKS_LABEL, "exact match, memorized samples"),
        scale_y=style.whole_percent_axis,
        level=0,
    )


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(setting, before, after) of every input or setting in which the two differ."""
    left, right = (dict(_flat(side)) for side in (before, after))
    return [
        (name, left.get(name, MISSING), right.get(name, MISSING))
        for name in dict.fromkeys([*left, *right])
        if left.get(name) != right.get(name)
    ]


def _flat(value: Any, path: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(entry, (*path, str(key)))
    else:
        yield " / ".join(path), str(value)
