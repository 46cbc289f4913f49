"""Each number that the pages print, against the tables.

The pages are read as a reader does, and compared with what `numbers_again` computes from the
tables, without the code that writes the pages. A number that nothing accounts for is a failure, so
a new sentence with a number needs a line there.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from pipeline.analysis import aggregate, spread
from pipeline.analysis.schema import Thresholds
from pipeline.analysis.theory import read_theory
from pipeline.interventions.interventions import SWEEP, Group
from pipeline.measure import schemas
from pipeline.report import figures, page
from pipeline.report.plots.localization import found_first
from pipeline.report.plots.plot import Plot
from pipeline.report.plots.training_time import trajectories
from pipeline.workflow import tables
from tests.analysis import synthetic, synthetic_theory
from tests.report.behind_again import expected_behind
from tests.report.numbers_again import Study, expected
from tests.report.reading import Expected, problems

THRESHOLDS = Thresholds(reduced=0.12, collapsed=0.34, resists=0.07, near_zero=0.03, by_length=0.45)

STEPS = [("tiny-neo-8", "a-run", 143_000), ("tiny-pythia-8", "a-run", 2_000)]
"""Two of the models, as if they were checkpoints of one training."""

THEORY = ("The theorems, measured", "Attention-only transformers")
"""Sections of a page of their own."""
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><path/></svg>'
UNSEEN = r"<(script|style|svg)\b.*?</\1>"
SAMPLES = r'<div class="tokens.*?</div>|<q>.*?</q>|<dl class="written.*?</dl>'


@dataclass(frozen=True)
class Made:
    """A page without its drawings and scripts, and what it has to hold."""

    html: str
    expected: Expected


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Four models of two families, with benchmarks beside blind scorers, and texts."""
    root = tmp_path_factory.mktemp("numbers")
    data = root / "data"
    groups = [*SWEEP, Group("each", "zero"), Group("random", k=2, draws=2)]
    every = synthetic.MODELS | {"twin-neo-8": synthetic.MODELS["tiny-neo-8"]}
    studied = synthetic.study(models=every, per_copies=16, groups=groups)
    other = {**studied.manifests["twin-neo-8"], "origin": {"recipe": {"most_copies": 0}}}
    models = replace(studied, manifests={**studied.manifests, "twin-neo-8": other}).write(data)
    aggregate.write_summary(
        "tiny",
        models,
        data,
        data / "summary.parquet",
        limits=THRESHOLDS,
        twins={"tiny-neo-8": "twin-neo-8"},
    )
    (data / "tasks").mkdir()
    blind = {"tiny_piqa": {"unigram": 0.5123, "longest": 0.4867}}
    (data / "tasks" / "baselines.json").write_text(json.dumps(blind))
    text = {"decoding": "greedy", "prompt": "a 1", "prompt_tokens": [1], "continuation": [2]}
    rows = [
        {"intervention": name, "prompt_id": prompt, **text, "text": "3"}
        | {"first_difference": None, "first_difference_character": None}
        | {"baseline_perplexity": 1.5 + 2 * prompt, "distinct_bigrams": 0.5 + 0.2 * prompt}
        for prompt in (0, 1)
        for name in ("baseline", "block-03")
    ]
    schema = {name: column.dtype for name, column in schemas.GENERATIONS.items()}
    path = data / "generations" / "tiny-neo-8.parquet"
    tables.write(pl.DataFrame(rows, schema=schema), path, schemas.GENERATIONS, {})
    scores = _scores()
    tables.write(scores, data / "localization.parquet", tables.LOCALIZATION, {})
    synthetic_theory.write(data, every)
    summary = pl.read_parquet(data / "summary.parquet")
    experiments = list(synthetic_theory.experiments())
    theory = read_theory(data, models, experiments=experiments)
    plots = figures.plots(summary, theory, spread.quantiles(summary, data))
    plots[1:1] = found_first(scores)
    plots[1:1] = trajectories(summary, STEPS)
    _figures(plots, root / "figures")
    page.write_page(
        "tiny",
        models,
        data,
        data / "tasks",
        root / "figures",
        root / "index.html",
        root / "tables",
        {},
        thresholds=THRESHOLDS,
        divergence=True,
        experiments=experiments,
        localization=True,
    )
    return Study(data, models, THRESHOLDS, STEPS)


def _scores() -> pl.DataFrame:
    """Scores of the blocks of models of which one block learned."""
    rows = [
        {"model": f"{part}-{planted}", "part": part, "planted": planted, "block": block}
        | {"exact_match": 0.9 + 0.01 * planted, "scorer": scorer, "quantity": quantity}
        | {"score": (7 * block + 3 * planted + len(scorer)) % 10 / 10}
        for part in ("attention", "mlp")
        for planted in range(4)
        for scorer, quantity in (("identity", "exact_match"), ("zero", "log_prob"))
        for block in range(4)
    ]
    schema = {name: column.dtype for name, column in tables.LOCALIZATION.items()}
    return pl.DataFrame(rows).select(pl.col(n).cast(dtype) for n, dtype in schema.items())


def _figures(plots: Sequence[Plot], folder: Path) -> None:
    """The captions and the data of all figures, without the drawings."""
    folder.mkdir()
    words = ("name", "section", "title", "finding", "reading", "caption", "alt")
    for plot in plots:
        (folder / f"{plot.name}.svg").write_text(SVG)
        plot.data.write_csv(folder / f"{plot.name}.csv")
    index = [{word: getattr(plot, word) for word in words} for plot in plots]
    (folder / "figures.json").write_text(json.dumps(index))


@pytest.fixture(scope="module")
def made(study: Study) -> Made:
    return Made(_seen(study, "index"), expected(study))


@pytest.fixture(scope="module")
def behind(study: Study) -> Made:
    """The page of numbers; the data of the theory's figures are those of their files."""
    folder = study.data.parent / "figures"
    index = json.loads((folder / "figures.json").read_text())
    names = [plot["name"] for plot in index if plot["section"] in THEORY]
    others = [
        (name, pl.read_csv(folder / f"{name}.csv", infer_schema_length=None)) for name in names
    ]
    return Made(_seen(study, "numbers"), expected_behind(study, others))


def _seen(study: Study, name: str) -> str:
    html = (study.data.parent / f"{name}.html").read_text(encoding="utf-8")
    return re.sub(UNSEEN, "", html, flags=re.DOTALL)


def _changed(html: str, at: int) -> str:
    """The page with another digit at a place."""
    return f"{html[:at]}{(int(html[at]) + 1) % 10}{html[at + 1 :]}"


def test_every_number_of_the_page_is_that_of_the_tables(made: Made) -> None:
    assert problems(made.html, made.expected) == []


def test_every_number_behind_the_page_is_that_of_the_tables(behind: Made) -> None:
    assert problems(behind.html, behind.expected) == []


@pytest.mark.parametrize(
    "where",
    [
        r"<li class=\"samples\">(\d+)",
        r"<p class=\"study\">Study .* at most (\d+)",
        r"memorized samples from (\d+)",
        r"The same bypass keeps (\d+)",
        r"Of its (\d+) claims",
        r"<strong>Figure (\d+)[a-z]?\.",
        r"<strong>Figure.*ends most exact matches at (\d+) of",
        r"<strong>Figure.*ends most exact matches at \d+ of \d+ blocks; at (\d+) of",
        r"<strong>Figure.*differ most at block (\d+)",
        r"<strong>Figure.*differ most at block .* to (\d+)% and",
        r"<strong>Figure.*exact match averages (\d+)%",
        r"<strong>Figure.*a mean of (\d+)% against",
        r"<strong>Figure.*leaves a median of (\d+)",
        r"<strong>Figure.*At baseline the suffix has ([\d.]+)",
        r"<strong>Figure.*of the tokens of the median memorized sample and (\d+)",
        r"<strong>Figure.*by a median of ([\d.]+),",
        r"<strong>Figure.*scores are highest, a mean of (\d+)",
        r"<strong>Figure.*recite more than half from (\d+)",
        r"<strong>Figure.*is named most often, in (\d+)",
        r"<strong>Figure.*a-run: memorized samples .* step ([\d,]+) \(\d",
        r"<strong>Figure.*a-run: memorized samples .* \(\d+\.(\d)%",
        r"<strong>Figure.*a-run: .*; (\d) of \d blocks become necessary",
        r"<strong>Figure.*a-run: .*necessary for that, .* from step ([\d,]+) on",
        r"Necessary for exact match: from step [\d,]+, blocks? (\d)",
        r"changes by .(\d+)% to .* in reasoning",
        r"here: figure (\d+)",
        r"<caption>.*is lowest, (\d+)",
        r"<th scope=\"row\">block 6</th><td[^>]*>(\d+)",
        r"<th scope=\"row\">block (6)</th>",
        r"<th scope=\"row\">tiny-neo-8</th>.*?<span class=\"interval\">\[(\d+)",
        r"<th scope=\"row\">tiny_piqa, acc</th><td>50.0%</td><td>(\d+)",
        r"<td><span class=\"verdict \w+\">supported in (\d)",
        r"<td>With one late block bypassed, exact match loses (\d+)",
        r"late blocks, model by model: tiny-pythia-8: (\d)",
        r"each benchmark at most (\d+)",
        r"Judged by (\d+) intervals",
        r"intervals at 99\.(\d+)% each",
        r"<dd>(\d+) models",
        r"<dd>\d+ to (\d+) per model",
        r"pythia (\d+) and \d+ tokens",
        r"first error at token (\d+)",
        r"chosen from the (\d+)",
        r"<caption>pythia, sample (\d+)",
        r"<caption>pythia, sample .* (\d+) times",
        r"<caption>pythia, sample .* broken by \d+ of (\d+)",
        r"continued by tiny-pythia-8 after (\d+)",
        r"<summary>(\d) texts",
        r"<td>With a quarter of the blocks bypassed at once, exact match keeps (\d)",
        r"The largest of them has (\d+)",
        r"<dt>block-0(3)</dt>",
        r"<td>block-0(3)</td>",
        r"<td>baseline</td><td>([\d.]+)",
        r"<td>baseline</td><td>[\d.]+</td><td>(\d+)",
        r"<li>In (\d) models one block alone",
        r"<li>Where attention learned: .* names the block in (\d+)",
        r"half of the recitals at block \d (\d+)",
        r"<th scope=\"row\">chance</th><td>(\d+)",
        r"<th scope=\"row\">identity: recitals lost</th>.*?\(0\.(\d+)–",
        r"<th scope=\"row\">block-0(2)</th>",
        r"<th scope=\"col\">true suffix</th><th scope=\"col\">(\d+)",
    ],
)
def test_another_number_is_noticed(made: Made, where: str) -> None:
    found = list(re.finditer(where, made.html, re.IGNORECASE))
    assert found
    for each in found:
        changed = _changed(made.html, each.end(1) - 1)
        assert problems(changed, made.expected), each[0]


@pytest.mark.parametrize(
    "where",
    [
        r"<th scope=\"row\">tiny-neo-8</th><td>[+-]?(\d+)",
        r"<td>exact match loses</td><td>\d+\.(\d)%",
        r"<td>the score changes by</td><td>.*?<span class=\"interval\">\[[+-](\d+)",
        r"\(p = ([\d.]+)\)",
        r"The numbers behind figure 1 \((\d+) rows",
        r"<td>exact_match</td><td>memorization</td><td>([\d.]+)",
        r"<td>completion_entropy</td><td>([\d.]+)",
    ],
)
def test_another_number_behind_the_page_is_noticed(behind: Made, where: str) -> None:
    found = re.search(where, behind.html)
    assert found
    assert problems(_changed(behind.html, found.end(1) - 1), behind.expected)


def test_a_sentence_with_a_number_of_its_own_is_noticed(made: Made) -> None:
    changed = made.html.replace("</main>", "<p>It holds in 7 cases.</p></main>")
    assert problems(changed, made.expected) == ["It holds in 7 cases."]


@pytest.mark.slow
def test_any_other_number_is_noticed(made: Made, behind: Made) -> None:
    """Some of all numbers, wherever they stand, but in the texts of samples."""
    assert _unnoticed(made, 40) == []
    assert _unnoticed(behind, 10) == []


def _unnoticed(made: Made, count: int) -> list[str]:
    """What is around those numbers, of `count` from start to end, that may be others."""
    left_out = re.compile(rf"{SAMPLES}|<[^>]*>|&#\d+;|of which the last are “.*?”", re.DOTALL)
    seen = left_out.sub(lambda found: " " * len(found[0]), made.html)
    places = [found.end() - 1 for found in re.finditer(r"\d+", seen)]
    return [
        made.html[at - 60 : at + 10]
        for at in places[:: len(places) // count]
        if not problems(_changed(made.html, at), made.expected)
    ]
