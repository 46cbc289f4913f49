"""Writes the table of metrics into the page that asks for it, from the registry itself."""

from pipeline.measure.metrics import METRICS, Metric

MARK = "<!-- metrics of memorization -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the mark by a table of all metrics."""
    heading = "| column | meaning | unit | memorized is | needs | source |\n"
    heading += "|---|---|---|---|---|---|\n"
    table = heading + "\n".join(map(_row, METRICS))
    return markdown.replace(MARK, table)


def _row(metric: Metric) -> str:
    direction = "higher" if metric.memorized_is_higher else "lower"
    cells = metric.meaning, metric.unit, direction, metric.needs, metric.source
    return f"| `{metric.name}` | {' | '.join(cells)} |"
