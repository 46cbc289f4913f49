"""A figure of one's own in `mine/`: drawn with its words, and in the digest of its stage alone."""

import json
import re
from pathlib import Path

import polars as pl

from tests.measure.test_own_metrics import python
from tests.project import copy_files
from tests.test_readme import blocks

FIGURE = """
from pathlib import Path
import polars as pl
from pipeline.report import figures
from pipeline.report.markup import plain
summary = pl.read_parquet("summary.parquet")
(plot,) = figures.own(summary)
with figures.atomic(Path("drawn"), directory=True) as folder:
    figures.style.save(figures.figure(plot), folder, plot.name)
print(plain(plot.words()["finding"]), figures.own.__module__)
"""
DIGESTS = """
import json
from pipeline.workflow.digest import digest
print(json.dumps({key: digest(key) for key in ("figures", "report", "aggregate", "memorization")}))
"""


def test_the_figure_of_the_page(summary: pl.DataFrame, tmp_path: Path) -> None:
    copy_files(tmp_path)
    before = json.loads(python(tmp_path, DIGESTS))
    (example,) = [code for code in blocks("docs/your-own.md", "python") if "def plots" in code]
    (tmp_path / "mine/figures.py").write_text(example.replace("rouge_l", "exact_match"))
    summary.write_parquet(tmp_path / "summary.parquet")
    assert re.match(r"ROUGE-L ranges over .*%.* mine.figures", python(tmp_path, FIGURE))
    assert {each.suffix for each in (tmp_path / "drawn").iterdir()} >= {".svg", ".png", ".pdf"}
    after = json.loads(python(tmp_path, DIGESTS))
    assert {key for key in before if before[key] != after[key]} == {"figures"}
