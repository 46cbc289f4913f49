"""Every number of the pages: numbers.json against the tables, the pages against numbers.json.

The numbers are computed again here from the tables alone, with code of its own. On the pages a
number stands in an element ``data`` that names it, and no digit that is not a part of a name or of
the text of a template stands outside of one.
"""

import itertools
import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import polars as pl
import pytest
from filelock import FileLock

from pipeline.analysis import aggregate
from pipeline.analysis.localization import merits
from pipeline.analysis.schema import Thresholds
from pipeline.interventions.interventions import SWEEP, Group
from pipeline.localization.schemas import LOCALIZATION, REMOVAL
from pipeline.measure import schemas
from pipeline.measure.metrics import METRICS
from pipeline.report import figures, page
from pipeline.workflow import tables
from tests.analysis import synthetic, synthetic_theory
from tests.analysis import test_localization as localization
from tests.report import captions
from tests.report.figure_data import frames, spread

THRESHOLDS = Thresholds(reduced=0.12, collapsed=0.34, resists=0.07, near_zero=0.03, by_length=0.45)
STEPS = [("tiny-neo-8", "a-run", 143_000), ("tiny-pythia-8", "a-run", 2_000)]
"""Two of the models, as if they were checkpoints of one training."""

OF_THEORY = ("divergence", "theorem", "damage", "capacity", "low-rank", "attention", "routing")
OF_THEORY += ("localization",)
"""Starts of the names of figures that are tested elsewhere."""
BY_HAND = ("training", "extraction")
"""Likewise of figures whose words are worked out by hand elsewhere."""

PAGES = ("index", "numbers", "theory")
UNWRITTEN = ("script", "style", "svg", "q")
DIGITS = re.compile(r"[-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?")

Row = dict[str, Any]

PAPERS = ["late-block", "early-block", "late-perplexity", "gains", "larger-models", "texts"]
PAPERS += ["reasoning", "quarters", "last-quarter"]
"""The claims of the paper."""


@dataclass(frozen=True)
class Made:
    """A study's data, its numbers by name, and its pages."""

    data: Path
    numbers: list[Row]
    html: dict[str, str]

    def table(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.data / f"{name}.parquet")

    def figure(self, name: str) -> pl.DataFrame:
        path = self.data.parent / "figures" / f"{name}.csv"
        return pl.read_csv(path, infer_schema_length=None)

    def starting(self, start: str) -> dict[str, Row]:
        """The numbers whose names start so, by the rest of the name."""
        named = {row["name"]: row for row in self.numbers}
        return {name[len(start) :]: row for name, row in named.items() if name.startswith(start)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A study and its pages, written once for all workers."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "numbers"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            _write(root)
    html = {name: (root / f"{name}.html").read_text(encoding="utf-8") for name in PAGES}
    return Made(root / "data", json.loads((root / "numbers.json").read_text()), html)


def _write(root: Path) -> None:
    """Four models of two families, with benchmarks beside blind scorers, texts and theory."""
    data = root / "data"
    groups = [*SWEEP, Group("each", "zero"), Group("random", k=2, draws=2)]
    studied = synthetic.study(
        models=synthetic.MODELS | {"twin-neo-8": synthetic.MODELS["tiny-neo-8"]},
        per_copies=16,
        groups=groups,
    )
    other = {**studied.manifests["twin-neo-8"], "origin": {"recipe": {"most_copies": 0}}}
    models = replace(studied, manifests={**studied.manifests, "twin-neo-8": other}).write(data)
    twins = {"tiny-neo-8": "twin-neo-8"}
    aggregate.write_summary("tiny", models, data, twins=twins, limits=THRESHOLDS)
    (data / "tasks").mkdir()
    blind = {"tiny_piqa": {"unigram": 0.5123, "longest": 0.4867}}
    (data / "tasks" / "baselines.json").write_text(json.dumps(blind))
    text = {"prompt": "a 1", "prompt_tokens": [1], "continuation": [2]}
    text |= {"text": "3", "first_difference": None, "first_difference_character": None}
    rows = [
        {"intervention": name, "prompt_id": prompt, "decoding": decoding, **text}
        | {"baseline_perplexity": 1.5 + 2 * prompt + more + 4 * (name == "block-03")}
        | {"distinct_bigrams": 0.5 + 0.2 * (prompt - more)}
        for prompt in (0, 1)
        for more, decoding in enumerate(("greedy", "sampled"))
        for name in ("baseline", "block-03")
    ]
    written = pl.DataFrame(rows, schema=tables.dtypes(schemas.GENERATIONS))
    path = data / "generations" / "tiny-neo-8.parquet"
    tables.write(written, path, schemas.GENERATIONS, {})
    scores, removal = _located()
    tables.write(scores, data / "localization.parquet", LOCALIZATION, {})
    tables.write(removal, data / "removal.parquet", REMOVAL, {})
    synthetic_theory.write(data, synthetic.MODELS)
    figures.write_figures(data, root / "figures", steps=STEPS)
    reported = [pair for pair in models if pair[0] != "twin-neo-8"]
    page.write_page("tiny", reported, data, data / "tasks", root, {}, thresholds=THRESHOLDS)


def _located() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Scores of the blocks of models of which one learned; what is left without those named."""
    truths = [(truth, base) for base in range(4) for truth in ("attention", "mlp")]
    found = []
    for name in ("oracle", "random", "identity.exact_match", "zero.log_prob"):
        of_base = [
            [(7 * b + 3 * base + len(name)) % 10 / 10 for b in range(4)] for base in range(4)
        ]
        models = {f"{truth}-{base}": (truth, {base}, of_base[base]) for truth, base in truths}
        found.append(localization.table(models, name, seeds=2))
    scores = pl.concat(found).with_columns(seed=pl.lit(0, pl.Int64))
    number = pl.int_range(pl.len())
    removal = localization.removal_of(scores).with_columns(
        exact_match=0.8 + 0.05 * (number % 4),
        exact_match_left=0.04 * (number % 3),
        accuracy_left=0.5 - 0.015 * (number % 5),
    )
    return scores, removal


class Shown(HTMLParser):
    """The numbers of a page with their places in numbers.json, and the text around them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.numbers: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self._path: list[str] = []
        self._index: int | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("meta", "link", "br", "img", "input", "hr"):
            return
        values = dict(attrs)
        if tag == "data":
            self._index = int(values["value"] or -1)
            self.numbers.append((self._index, ""))
        # of a sample the tokens, of a text what was written, of a figure's data the CSV's numbers
        unwritten = {"tokens", "written"} & set((values.get("class") or "").split())
        behind = (values.get("id") or "").startswith("numbers-")
        self._path.append("skip" if unwritten or behind else tag)
        if tag not in ("data", "span", "em", "strong", "code", "a"):
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        self._path.pop()
        if tag == "summary":
            self.lines.append("")
        if tag == "data":
            self._index = None

    def handle_data(self, data: str) -> None:
        if self._index is not None:
            index, text = self.numbers[-1]
            self.numbers[-1] = index, text + data
        elif not {"skip", *UNWRITTEN} & set(self._path) and self.lines:
            self.lines[-1] += data


def agrees(text: str, number: Row) -> bool:
    """Whether `text` is the number, or its interval or range, rounded to the digits that it has."""
    growth = number["unit"] == "growth"

    def scaled(value: float) -> float:
        if growth:
            return 100 * math.expm1(min(value, 50.0))
        return 100 * value if "%" in text or "point" in text else value

    written = [part.replace(",", "") for part in DIGITS.findall(text.replace("–", " "))]
    ends = [number["low"], number["high"]]
    if number["value"] is None and len(written) == 1:  # both ends are written alike
        return all(agrees(text, {**number, "value": end}) for end in ends)
    if number["value"] is None or text.startswith("["):
        expected = ends
    else:
        expected = [number["value"], *(ends if "[" in text else [])]
    known = [end for end in expected if end is not None]
    return len(known) == len(written) and all(map(_rounds, map(scaled, known), written))


def _rounds(value: float, written: str) -> bool:
    mantissa, _, exponent = written.partition("e")
    if exponent or (abs(value) >= 100 and mantissa.endswith("0") and "." not in mantissa):
        digits = len(mantissa.strip("+-").replace(".", "").rstrip("0"))  # significant ones
        return math.isclose(float(f"{value:.{max(digits - 1, 0)}e}"), float(written))
    return float(f"{value:.{len(mantissa.partition('.')[2])}f}") == float(written)


def test_the_pages_show_the_numbers_of_numbers_json_each_under_one_name(made):
    """And no digit on a page could be another one."""
    numbers = {name: Shown(html).numbers for name, html in made.html.items()}
    assert all(numbers.values())
    shown = set(itertools.chain(*numbers.values()))
    assert [(text, made.numbers[i]) for i, text in shown if not agrees(text, made.numbers[i])] == []
    for index, text in shown:
        for at, digit in enumerate(text):
            # two significant digits of the heatmap: 220 for 221.4, where 221 is right too
            if digit.isdigit() and (at + 1 < len(text) or digit != "0" or "." in text):
                other = f"{text[:at]}{(int(digit) + 1) % 10}{text[at + 1 :]}"
                assert not agrees(other, made.numbers[index]), (text, other, made.numbers[index])
    names = [number["name"] for number in made.numbers]
    assert len(names) == len(set(names))
    used = {index for index, _ in shown}
    described = {i for i, name in enumerate(names) if name.startswith("figures/")}  # in an alt text
    assert set(range(len(names))) - described <= used <= set(range(len(names)))
    assert all(
        list(row) == ["name", "value", "low", "high", "unit", "table"] for row in made.numbers
    )


def test_no_number_stands_outside(made):
    """Digits outside of ``data`` are literal text of a template, or part of a name."""
    assert set(_digits(Shown("<p>It holds in 7531 cases.</p>").lines)) == {"7531"}
    literal = set(_digits(_literals()))
    named = set(_digits(_names(made)))
    for name in PAGES:
        lines = [line for line in Shown(made.html[name]).lines if "not measured on" not in line]
        left = [(n, line.strip()) for line in lines for n in {*_digits([line])} - literal - named]
        assert left == [], "\n".join(map(str, left))


def _digits(lines: Iterable[str]) -> Iterable[str]:
    """The words with a digit."""
    for line in lines:
        for word in re.split(r"[^\w.%+-]+", line):
            if re.search(r"\d", word):
                yield word.strip(".-+")


def _literals() -> Iterable[str]:
    folder = Path(page.__file__).parent
    for path in (*folder.glob("*.jinja"), *folder.glob("*.yaml")):
        yield re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>", " ", path.read_text(encoding="utf-8"))


def _names(made: Made) -> Iterable[str]:
    summary = made.table("summary")
    for column in ("model", "family", "intervention", "task", "metric"):
        yield from map(str, summary[column].unique())
    blocks = summary["block"].drop_nulls().unique().to_list()
    yield " ".join(map(str, blocks))
    yield from (name.rpartition("/")[2] for name in made.starting("localization/stops/block-"))
    yield from made.table("localization")["model"].unique()
    yield from (metric.meaning for metric in METRICS)
    labels = re.findall(r"<strong>Figure (\w+)\.", "".join(made.html.values()))
    yield " ".join(labels)
    yield " ".join(re.findall(r"sample (\d+) \(", made.html["index"]))


def near(row: Row, *expected: float | None) -> bool:
    """Whether value, low and high are the expected ones; a missing one is None."""
    shown = [row["value"], row["low"], row["high"]][: len(expected)]
    return all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        for a, b in zip(shown, expected, strict=True)
    )


def test_rows_of_the_summary(made):
    key = ("model", "intervention", "task", "metric", "split", "k", "copies")
    shown = made.starting("summary/")
    assert len(shown) > 100
    by_name = {
        "/".join(str(row[c]) for c in key if row[c] is not None): row
        for row in made.table("summary").rows(named=True)
    }
    for name, row in shown.items():
        assert near(row, *(by_name[name][end] for end in ("value", "low", "high"))), name


def test_the_finding(made):
    exact = made.table("summary").filter(metric="exact_match", split="memorized")
    before = exact.filter(intervention="baseline")["value"].to_list()
    shown = made.starting("finding/")
    assert near(shown["baseline/exact_match"], None, min(before), max(before))
    assert shown["studied"]["value"] == len(before)
    n = exact.filter(intervention="baseline")["n"].to_list()
    assert near(shown["samples"], None, min(n), max(n))
    data = made.figure("kept").filter(pl.col("block") > 0)
    exact, tokens = (
        data.filter(measure=measure).pivot("edit", index=["model", "block"], values="kept")
        for measure in ("exact_match", "teacher_forced_accuracy")
    )
    for edit in ("identity", "zero"):
        n_blocks = pl.col("block").max().over("model") + 1
        of_edit = data.filter(edit=edit)
        late = of_edit.filter(pl.col("block") >= 3 * n_blocks // 4)
        memory, ability = pl.col("measure") == "exact_match", pl.col("kind") == "mean"
        for what, rows in {"exact_match": memory, "benchmarks-kept": ability}.items():
            kept = late.filter(rows).group_by("model").agg(pl.mean("kept"))["kept"]
            place = f"{edit}/late-block/{what}"
            assert near(shown[place], None, kept.min(), kept.max())
            low, high = (shown[f"{place}/intervals"][end] for end in ("low", "high"))
            assert low < kept.min() <= kept.max() < high
        lost = of_edit.filter(memory, pl.col("high") < 0.5).height
        assert shown[f"{edit}/stopped"]["value"] == exact.filter(pl.col(edit) < 0.5).height >= lost
        assert shown[f"{edit}/surely"]["value"] == lost
    lost = {edit: pl.col(edit) < 0.5 for edit in ("identity", "zero")}
    compared = {name: row["value"] for name, row in made.starting("finding/compared/").items()}
    assert compared == {
        "blocks": exact.height,
        "every": exact.filter(*lost.values()).height,
        "only": exact.filter(lost["identity"], ~lost["zero"]).height,
        "surely": data.filter(memory, pl.col("high") < 0.5, edit="identity")
        .join(data.filter(memory, pl.col("low") >= 0.5, edit="zero"), on=["model", "block"])
        .height,
        "fewest": tokens.filter(pl.col("identity") < pl.col("zero")).height,
        "tokens": tokens.height,
    }


def test_what_the_study_consists_of(made):
    summary, shown = made.table("summary"), made.starting("study/")
    counts = [len(rows["intervention"].unique()) for _, rows in summary.group_by("model")]
    assert near(shown["interventions"], None, min(counts), max(counts))
    paths = [*made.data.glob("checkpoints/tiny-*/manifest.json")]
    assert shown["models"]["value"] == len(paths)
    parameters = [json.loads(path.read_text())["parameters"] for path in paths]
    assert shown["parameters"]["value"] == max(parameters)
    assert near(shown["seeds"], None, 1, 1)
    for split in ("memorized", "exposed", "control"):
        n = [
            made.table(f"memorization/{model}").filter(split=split, intervention="baseline").height
            for model in summary["model"].unique()
        ]
        assert near(shown[f"samples/{split}"], None, min(n), max(n)), split


def test_settings_and_texts(made):
    """The chance level of each benchmark, the thresholds, and means over what models wrote."""
    summary = made.table("summary")
    for name, row in made.starting("benchmarks/").items():
        task, _, what = name.partition("/")
        if what == "chance":
            assert near(row, summary.filter(task=task)["chance"][0]), name
    shown = made.starting("thresholds/")
    assert near(shown.pop("points"), 7)
    limits = THRESHOLDS.model_dump()
    assert all(near(row, limits[name]) for name, row in shown.items())
    assert {"reduced", "collapsed", "near_zero", "by_length"} <= set(shown)
    shown = made.starting("generations/")
    assert near(shown["tiny-neo-8/baseline/greedy/perplexity"], geometric_mean([1.5, 3.5]))
    assert near(shown["tiny-neo-8/baseline/sampled/perplexity"], geometric_mean([2.5, 4.5]))
    assert near(shown["tiny-neo-8/block-03/greedy/perplexity"], geometric_mean([5.5, 7.5]))
    assert near(shown["tiny-neo-8/block-03/greedy/distinct"], 0.6)
    assert near(shown["tiny-neo-8/block-03/sampled/distinct"], 0.4)
    assert shown["texts"]["value"] == 4


def test_what_one_late_block_leaves(made):
    """Model by model, and edit by edit."""
    rows = made.table("evidence").filter(over="late", quantity="kept")
    for model, edit in itertools.product(synthetic.MODELS, ("identity", "zero")):
        shown = made.starting(f"retention/{edit}/{model}/")
        own = rows.filter(model=model, edit=edit)
        assert len(shown) > 8
        [exact] = own.filter(metric="exact_match").to_dicts()
        able = own.filter(metric="acc")["value"].mean()
        assert near(shown["exact_match"], exact["value"])
        assert near(shown["gap"], able - exact["value"])
        for k, value in own.filter(metric="exact_match_at_k").select("k", "value").iter_rows():
            assert near(shown[f"first {k}"], value)
        for task, value in own.filter(metric="acc").select("task", "value").iter_rows():
            assert near(shown[task], value)
        assert all(row["low"] <= row["value"] <= row["high"] for row in shown.values())
        if edit == "identity":
            told = made.starting(f"models/{model}/")
            assert told["n_blocks"]["value"] == synthetic.MODELS[model][1]
            assert near(told["late-block/exact_match"], exact["value"])
            assert told["late-block/exact_match"]["low"] < exact["value"]
            assert near(told["effective"], exact["n_effective"])
            assert near(told["late-block/benchmarks"], able)


def test_the_intervals_behind_the_verdicts(made):
    main = pl.col("condition").is_not_null() & (pl.col("setup") == "acc, last quarter")
    rows = made.table("verdicts").filter(main, edit="identity").to_dicts()
    shown = made.starting("verdicts/")
    assert len(rows) > 100
    for row in rows:
        key = ("claim", "model", "unit", "condition", "part")
        number = shown["/".join(row[c] for c in key if row[c] is not None)]
        assert near(number, row["estimate"], row["low"], row["high"])


def test_the_counts_of_verdicts(made):
    every = made.table("verdicts").filter(setup="acc, last quarter")
    verdicts = every.filter(edit="identity")
    shown, of_models = made.starting("claims/"), pl.col("model").is_not_null()
    judged = pl.col("condition").is_not_null()
    cases = every.filter(of_models, pl.col("unit").is_null())
    for (claim, edit), rows in cases.group_by("claim", "edit"):
        if edit in ("identity", "zero"):
            place, own = claim if edit == "identity" else f"{claim}/zero", rows["verdict"].to_list()
            assert shown[f"{place}/total"]["value"] == len(own)
            for verdict in set(own):
                assert shown[f"{place}/{verdict}"]["value"] == own.count(verdict), place
    for (claim,), rows in verdicts.drop_nulls("needed").group_by("claim"):
        assert shown[f"{claim}/needed"]["value"] == rows["needed"].max()
    for claim in set(cases.filter(edit="identity")["claim"]):
        conditions = verdicts.filter(judged, claim=claim)
        assert shown[f"{claim}/intervals"]["value"] == conditions.height
        assert near(shown[f"{claim}/level"], conditions["level"][0])
        for (condition,), rows in conditions.group_by("condition"):
            known = [v for v in rows["estimate"].drop_nulls() if math.isfinite(v)]
            if known:
                assert near(shown[f"{claim}/{condition}"], None, min(known), max(known))
        units = verdicts.filter(~judged, pl.col("unit").is_not_null(), claim=claim)
        for (model,), rows in units.group_by("model"):
            if f"{claim}/{model}/total" in shown:
                assert shown[f"{claim}/{model}/total"]["value"] == rows.height
                right = rows["verdict"].to_list().count("supported")
                assert shown[f"{claim}/{model}/supported"]["value"] == right
    paper = made.starting("claims/paper/")
    assert sum(row["value"] for row in paper.values()) == shown["paper"]["value"]
    main = verdicts.filter(pl.col("claim").is_in(PAPERS))
    barred = main.filter(pl.col("needed").is_not_null() | pl.col("lacks").is_not_null())["claim"]
    undecided = main.filter(~of_models, verdict="undecided")["claim"]
    if "hopeless" in shown:
        assert shown["hopeless"]["value"] == len(set(undecided) & set(barred)) > 0
    assert near(shown["confidence"], 1 - THRESHOLDS.significance)


def test_the_samples(made):
    shown = made.starting("samples/")
    checked = 0
    for family in ("pythia", "gpt-neo"):
        samples = made.table(f"samples/{family}")
        assert near(shown[f"{family}/prefix"], samples["prefix_length"][0])
        assert near(shown[f"{family}/suffix"], samples["suffix_length"][0])
        for name, row in made.starting(f"samples/{family}/").items():
            number, *rest = name.split("/")
            if not rest:
                continue
            [sample] = samples.filter(sample_id=int(number)).rows(named=True)
            expected = {"copies": sample["copies"], "prefix": sample["prefix_length"]}
            if len(rest) == 2:
                own = made.table(f"memorization/{rest[0]}").filter(sample_id=int(number))
                bypassed = own.filter(pl.col("intervention") != "baseline")["exact_match"]
                expected = {"broken": (~bypassed).sum(), "interventions": len(bypassed)}
            assert row["value"] == expected[rest[-1]], name
            checked += 1
    assert checked > 10


def test_the_located_places(made):
    scores, shown = made.table("localization"), made.starting("localization/")
    graded = merits(scores)
    removal, deleted = made.table("removal"), made.starting("removal/")
    assert shown["models"]["value"] == scores["model"].n_unique()
    assert shown["bases"]["value"] == scores.select("base", "seed").n_unique()
    recited = removal["exact_match"].unique().to_list()
    assert near(shown["recited"], None, min(recited), max(recited))
    for truth in ("all", "attention", "mlp"):
        assert near(shown[f"{truth}/chance"], 1 / 4)
        for scorer in scores["scorer"].unique():
            own = graded.filter(pl.lit(truth == "all") | (pl.col("truth") == truth), scorer=scorer)
            row = shown[f"{truth}/{scorer}/hit"]
            assert near(row, own["hit"].mean()), (truth, scorer)
            assert row["low"] <= row["value"] <= row["high"]
            if truth == "all":
                for name in ("rank", "average_precision"):
                    assert near(shown[f"all/{scorer}/{name}"], own[name].mean()), scorer
                rows = removal.filter(scorer=scorer).to_dicts()
                left = [r["exact_match_left"] / r["exact_match"] for r in rows]
                lost = [r["accuracy"] - r["accuracy_left"] for r in rows]
                clean = [a <= 0.1 and b <= 0.02 for a, b in zip(left, lost, strict=True)]
                assert near(deleted[f"all/{scorer}/removed"], 1 - fmean(left))
                assert near(deleted[f"all/{scorer}/lost"], fmean(lost))
                assert near(deleted[f"all/{scorer}/clean"], fmean(clean))


def test_the_numbers_behind_the_figures_are_those_of_their_files(made):
    """The cells of the page of numbers, read as text, against the CSV files."""
    for label, name in re.findall(
        r'numbers-(\w+)">.*?href="figures/([\w-]+)\.csv"', made.html["numbers"], re.DOTALL
    ):
        start = made.html["numbers"].index(f'<details id="numbers-{label}"')
        section = made.html["numbers"][start : made.html["numbers"].index("</details>", start)]
        body = section[section.index("<tbody>") :]
        frame = pl.read_csv(made.data.parent / "figures" / f"{name}.csv", infer_schema_length=None)
        frame = frame.select(c for c in frame.columns if frame[c].null_count() < frame.height)
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in body.split("</tr>")[:-1]]
        assert len(rows) == frame.height == made.starting(f"figures/{name}/")["rows"]["value"]
        for cells, values in zip(rows, frame.iter_rows(), strict=True):
            for cell, value in zip(cells, values, strict=True):
                if isinstance(value, float) and math.isfinite(value):
                    assert _rounds(value, cell.replace(",", "")), (name, cell, value)
                elif isinstance(value, int):
                    assert cell.replace(",", "") == str(value).lower(), (name, cell, value)


def test_captions_say_what_the_figures_show(made):
    """Numbers and names of the figures' words; a number that is not computed here is one of few."""
    index = json.loads((made.data.parent / "figures" / "figures.json").read_text())
    said: dict[str, Any] = {}
    for figure in index:
        for word in ("finding", "caption", "alt"):
            said |= _flat(figure[word]["values"], f"figures/{figure['name']}")
    elsewhere = (*OF_THEORY, *BY_HAND)
    others = {name for name in made.starting("figures/") if not name.startswith(elsewhere)}
    for figure in index:
        name = figure["name"]
        kind = next((kind for kind in captions.FIGURES if name.startswith(kind)), None)
        beside = [made.table("evidence")] if kind == "scatter" else []
        computed = captions.FIGURES[kind](made.figure(name), *beside) if kind else ()
        for key, value in computed:
            number = said[f"figures/{name}/{key}"]
            others.discard(f"{name}/{key}")
            if isinstance(value, tuple):
                assert near({**number, "low": number["low"] if len(value) > 1 else None}, *value)
            else:
                assert number == value, (name, key)
    left = {name.rpartition("/")[2] for name in others}
    assert left <= {"rows", "panels", "tries", "blocks", "best", "chance", "value", "equal"}, left


def _flat(values: Any, place: str) -> dict[str, Any]:
    """Every number and text below `values`, by its place."""
    if isinstance(values, dict) and "unit" in values:
        return {place: values}
    if isinstance(values, dict) and values.keys() == {"source", "values"}:
        values = values["values"]
    if not isinstance(values, dict | list):
        return {place: values}
    entries = values.items() if isinstance(values, dict) else enumerate(values)
    return {name: v for key, entry in entries for name, v in _flat(entry, f"{place}/{key}").items()}


def test_the_data_of_the_figures_are_those_of_the_tables(made):
    summary = made.table("summary")
    models = summary["model"].unique(maintain_order=True)
    spreads = spread({name: made.table(f"memorization/{name}") for name in models})
    compared = set()
    for name, expected in frames(summary, made.table("evidence"), spreads, STEPS):
        if not expected.height:
            continue
        drawn = made.figure(name)
        assert set(drawn.columns) == set(expected.columns), name
        columns = sorted(drawn.columns)
        rows = [
            sorted(map(_comparable, frame.select(columns).rows())) for frame in (drawn, expected)
        ]
        assert rows[0] == rows[1], name
        compared.add(name)
    drawn_at_all = {path.stem for path in (made.data.parent / "figures").glob("*.svg")}
    assert not {name for name in drawn_at_all - compared if not name.startswith(OF_THEORY)}


def _comparable(row: tuple[Any, ...]) -> tuple[str, ...]:
    """A row without what differs by rounding in the last digits."""
    return tuple(f"{v:.9g}" if isinstance(v, float | int) else str(v) for v in row)
