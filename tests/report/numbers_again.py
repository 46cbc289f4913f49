"""What the numbers of a page have to be, from the tables of its study alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl
from tokenizers import Tokenizer

from pipeline.analysis.manifests import pretrained
from pipeline.analysis.schema import Thresholds
from tests.report import localization_again, training_again
from tests.report.captions_again import (
    SINGLE,
    WHOLE,
    benchmarks,
    captions,
    details,
    heatmap,
    kept_ability,
    late,
    memorized,
)
from tests.report.claims_again import claims
from tests.report.crosswalk_again import crosswalk, labels
from tests.report.reading import Cells, Expected, Line, Sample
from tests.report.spread_again import spread
from tests.report.verdicts_again import MEMORY, Claim, Model
from tests.report.written_again import counts, level, number, plural, share_range, shares

FIXED = [
    # the paper, its sections and figures
    *("arXiv 2501.05078", "section 4.2.1, and", "Figures 1–6 and A7–A22, and Eq. 4, of"),
    *("(Eq. 4 of the paper)", "accuracy (Eq. 4)", "entropy (Eq. 5)", "the highest 5%"),
    *("Figures 1 and A7–A11 of", "Figures 3 and A18–A20 of", "Figures 6 and A22 of"),
    *("Figure 2 of", "Figures 5 and A21 of", "Figures A12–A17 of"),
    # the level of the intervals of the summary and between seeds
    *("Bands: 95% intervals", "bands: 95% intervals", "Crosses: 95% intervals"),
    *(
        "Whiskers: 95% intervals",
        "with 95% intervals",
        "has the 95% intervals",
        "Student’s 95% interval",
        "At 95%, each",
    ),
    # the block that the paper warns against
    *("Apart from block 0,", "block 0, whose", "block 0, which", "Block 0.", "of block 0 "),
    "block 0 left out",
    # the explanation of the names
    *("counted from 0.", "block-03: block 3 alone", "quartile-1: all"),
    # ends of scales
    *("100%: the baseline; 0%: chance", "Below 0% is", "above 100% better", "kept: 0% 100%"),
    *("(1 to 4)", "0 copies: never trained on", "0 copies: neither", "the interval holds 0."),
    # sampling
    *("temperature 1 ", "temperature 1,", "the 40 likeliest"),
    *("Significant: at the 5% level",),
    # the measure
    *("recall at 1", "Recall at 1:"),
]
"""Numbers that do not come from a table."""

CHANGED = {
    "With acc_norm in place of acc": {"metric": "acc_norm"},
    "With the second half of the blocks as late": {"half": True},
}


class Study:
    """The tables of a study.

    Args:
        data: its folder.
        models: (name, family) of each, in the order of the report.
        thresholds: when a claim counts as shown.
        steps: model, run and step of each model that is a checkpoint of a training run.
    """

    def __init__(
        self,
        data: Path,
        models: Sequence[tuple[str, str]],
        thresholds: Thresholds,
        steps: training_again.Steps = (),
    ) -> None:
        self.steps = steps
        self.data, self.models, self.thresholds = data, models, thresholds
        self.summary = pl.read_parquet(data / "summary.parquet")
        self.evidence = pl.read_parquet(data / "evidence.parquet")
        assert self.evidence["recipe"].equals(self.evidence["model"]), "seeds are not pooled here"
        blind = data / "tasks" / "baselines.json"
        self.blind = json.loads(blind.read_text()) if blind.exists() else {}
        self.manifests = [
            json.loads((data / "checkpoints" / name / "manifest.json").read_text())
            for name, _ in models
        ]
        scores = data / "localization.parquet"
        self.scores = pl.read_parquet(scores) if scores.exists() else None
        self.samples = {
            family: pl.read_parquet(data / "samples" / f"{family}.parquet") for _, family in models
        }
        self.interventions = {
            name: pl.read_parquet(data / "interventions" / f"{name}.parquet")["intervention"]
            for name, _ in models
        }

    def spread(self) -> pl.DataFrame:
        read = {name: self.table("memorization", name) for name, _ in self.models}
        return spread({name: table for name, table in read.items() if table is not None})

    def table(self, folder: str, model: str) -> pl.DataFrame | None:
        path = self.data / folder / f"{model}.parquet"
        return pl.read_parquet(path) if path.exists() else None


def expected(study: Study) -> Expected:
    """The main page's."""
    judged = claims(study.evidence, study.thresholds)
    heatmaps = {name: heatmap(study.summary, name) for name, _ in study.models}
    tables: dict[str, Cells] = {f"{name}. ": cells for name, (_, cells) in heatmaps.items()}
    tables["The models, with"] = _models(study)
    tables["The benchmarks at baseline"] = _benchmarks(study)
    tables["Claim by claim"] = _claims(judged)
    lines = [*_header(study), *_found(study, judged), *_verdicts(study, judged), *_facts(study)]
    lines += [Line(f"{name}. ", [words]) for name, (words, _) in heatmaps.items()]
    told = list(captions(study.summary, study.spread()))
    if study.scores is not None:
        scored = localization_again.table(study.scores)
        told[1:1] = [("localization", localization_again.best(study.scores))]
        tables["How well each scorer"] = scored
        lines += localization_again.lines(study.scores)
    for run in reversed(dict.fromkeys(run for _, run, _ in study.steps)):
        found, below = training_again.course(study.summary, study.steps, run)
        told[1:1] = [("training", found)]
        lines.append(below)
    sections = [section for section, _ in told]
    tables["Figures 1–6"] = crosswalk(judged, sections)
    numbered = labels(sections)
    lines += [Line(f"Figure {i}. ", [words]) for i, (_, words) in zip(numbered, told, strict=True)]
    lines += details(study.summary)
    lines += _token_by_token(study)
    if any(study.table("generations", name) is not None for name, _ in study.models):
        tables["Perplexity per token under the baseline"] = _collapse(study)
    texts = [text for name, _ in study.models for text in _written(study, name)]
    lines += [Line(f"{len(texts)} texts")] if texts else []
    names = {name for model in study.models for name in model}
    names |= {name for own in study.interventions.values() for name in own}
    return Expected(lines, tables, FIXED, names, texts, partial(_sample, study))


def _header(study: Study) -> list[Line]:
    n = memorized(study.summary, "exact_match").filter(WHOLE)["n"]
    largest = f"{max(each['parameters'] for each in study.manifests):,} parameters"
    generated = not any(map(pretrained, study.manifests))
    own = [Line("Study “", [f"at most {largest}"])] if generated else []
    return [
        Line(plural(len(study.models), "model")),
        Line("1 seed each"),
        Line(f"{counts(n)} memorized samples per model"),
        *own,
        Line("The scale of these models.", [f"has {largest}."]),
        Line("Seeds.", ["1 for each configuration"]),
    ]


def _found(study: Study, judged: Sequence[Claim]) -> list[Line]:
    """The finding: medians over the late blocks, and how the claims of the paper fare."""
    exact = memorized(study.summary, "exact_match")
    typical = [late(rows)["value"].median() for _, rows in exact.group_by("model")]
    ability = kept_ability(study.summary)
    mean = ability.group_by("model", "block", "group", "edit").agg(pl.col("kept").mean())
    kept = [late(rows)["kept"].median() for _, rows in mean.group_by("model")]
    paper = [each.word for each in judged if each.source != "ours"]
    words = ("supported", "contradicted", "undecided", "not measured")
    told = [(paper.count(word), word) for word in words if word in paper]
    parts = [f"{n} {'is' if n == 1 else 'are'} {word}" for n, word in told]
    listed = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    before, after = exact.filter(WHOLE)["value"], pl.Series(typical)
    return [
        Line(
            "Bypassing one block of the last quarter takes exact match on memorized samples from ",
            [
                f"{share_range(before)} to {share_range(after)} (median block, range over the "
                "models)."
            ],
        ),
        Line(
            "The same bypass keeps ",
            [f"{share_range(pl.Series(kept))} of the lead over chance, averaged over"],
        ),
        Line("The paper’s main claim, memory lost at little cost", [f"is {judged[0].verdict}"]),
        Line(f"Of its {len(paper)} claims, {listed}."),
    ]


def _models(study: Study) -> list[list[str]]:
    splits = ["memorized", "control", *(["famous"] if "famous" in study.summary["split"] else [])]
    rows = [
        [
            *("model", "family", "blocks", "parameters"),
            *(f"exact match, {split}" for split in splits),
            "independent samples, memorized",
            "a late block keeps, exact match",
            "a late block keeps, benchmarks",
        ]
    ]
    for manifest in study.manifests:
        name = manifest["name"]
        own = study.evidence.filter(model=name)
        rates = [
            shares(*rate.select("value", "low", "high").row(0)) if rate.height else "–"
            for split in splits
            for rate in [memorized(study.summary, "exact_match", split).filter(WHOLE, model=name)]
        ]
        effective, keeps = "–", ["–", "–"]
        if (*MEMORY, "kept", "late") in (model := Model(own)).rows:
            effective = number(model.rows[*MEMORY, "kept", "late"][2])
            keeps = [
                shares(*each(0.95)) for each in (model.memory("late"), model.abilities("late"))
            ]
        size = f"{manifest['parameters']:,}"
        blocks = str(manifest["n_blocks"])
        rows.append([name, manifest["family"], blocks, size, *rates, effective, *keeps])
    return rows


def _benchmarks(study: Study) -> list[list[str]]:
    names = [name for name, _ in study.models]
    best = ["best without attention"] if study.blind else []
    table = [["benchmark", "chance", *best, *names]]
    rows = benchmarks(study.summary).filter(WHOLE).sort("task")
    for [task], own in rows.group_by("task", maintain_order=True):
        metric, chance, upwards = own.select("metric", "chance", "higher_is_better").row(0)
        write = (lambda share: shares(share, None, None)) if upwards else number
        scores = study.blind.get(task, {}).values()
        reached = [write((max if upwards else min)(scores)) if scores else "–"] if best else []
        cells = [
            (shares if upwards else level)(*own.filter(model=name)["value", "low", "high"].row(0))
            for name in names
        ]
        table.append([f"{task}, {metric}", write(chance), *reached, *cells])
    return table


def _claims(judged: Sequence[Claim]) -> list[list[str | None]]:
    table: list[list[str | None]] = [["claim", "verdict", "what this study shows", "the intervals"]]
    for each in judged:
        detail = f" Block by block{each.detail}" if each.detail else ""
        told = each.sentence and f"{each.sentence}{detail}"
        labels = "".join(
            dict.fromkeys(row[2].partition(" (")[0] for row in each.rows if row[3] != "–")
        )
        table.append([f"{each.name} ({each.source})", each.verdict, told, labels])
    return table


def _verdicts(study: Study, judged: Sequence[Claim]) -> list[Line]:
    """How the verdicts are reached."""
    sure = f"hold together with {100 * (1 - study.thresholds.significance):g}%,"
    lines = [
        Line("Judged on this study’s numbers alone", ["1 seed each"]),
        Line("A block is late", [sure, "Seeds trained: 1 for each configuration;"]),
    ]
    lines += [Line(f"{each.name} ({each.source}): {each.verdict} | ", each.rule) for each in judged]
    for what, setup in CHANGED.items():
        again = claims(study.evidence, study.thresholds, **setup)
        for one, other in zip(judged, again, strict=True):
            if one.verdicts != other.verdicts:
                lines.append(Line(f"{one.name}: {one.verdict}. {what}: {other.verdict}."))
    return lines


def _facts(study: Study) -> list[Line]:
    """What was measured."""
    splits = [
        f"{counts(pl.Series(own))} {split}"
        for split in ("memorized", "exposed", "control", "famous")
        if any(own := [rows.filter(split=split).height for rows in study.samples.values()])
    ]
    lengths = [
        f"{family} {prefix} and {suffix} tokens"
        for family, rows in study.samples.items()
        for prefix, suffix in rows.select("prefix_length", "suffix_length").unique().rows()
    ]
    rows = [
        rows for name, _ in study.models if (rows := study.table("memorization", name)) is not None
    ]
    whole = pl.concat(
        own.filter(WHOLE).select("split", "decoded", model=i) for i, own in enumerate(rows)
    )
    decoded = [
        f"{counts(own['decoded'])} {split}"
        for [split], own in whole.group_by("split")
        for own in [own.group_by("model").agg(pl.sum("decoded"))]
        if own["decoded"].sum() < whole.filter(split=split).height
    ]
    edits = pl.Series([len(own) for own in study.interventions.values()])
    return [
        Line(f"Models | {plural(len(study.models), 'model')}"),
        *([Line("Continuations decoded to the end | ", decoded)] if decoded else []),
        Line("Training seeds | 1 for each configuration"),
        Line("Interventions | ", [f"{counts(edits)} per model:"]),
        Line(f"Samples per model | {', '.join(splits)}"),
        Line(f"Prefix and suffix | {'; '.join(lengths)}"),
    ]


def _continued(study: Study, model: str, family: str) -> pl.DataFrame:
    """The continuations with the block, what is known of the sample, and the last true token."""
    rows = study.table("memorization", model)
    assert rows is not None
    last = pl.col("tokens").list.get(pl.col("prefix_length") + pl.col("suffix_length") - 1)
    known = study.samples[family].with_columns(last=last)
    kind = ["kind"] if "kind" in known.columns else []
    blocks = memorized(study.summary, "exact_match").filter(SINGLE, model=model)
    recited = rows.filter(WHOLE, "exact_match").select("sample_id", recited=True)
    return (
        rows.join(known.select("sample_id", "last", *kind), on="sample_id")
        .join(blocks.select("intervention", "block", "group", "edit"), "intervention", "left")
        .join(recited, on="sample_id")
    )


def _token_by_token(study: Study) -> list[Line]:
    """What is said of broken recitations under late blocks."""
    places, back, kinds, looked_at = list[float](), list[float](), [], []
    for name, family in study.models:
        rows = late(_continued(study, name, family)).filter(split="memorized")
        broken = rows.filter(~pl.col("exact_match"), "decoded")
        right = broken["continuation"].list.last() == broken["last"]
        medians = broken.group_by("intervention").agg(pl.median("correct_length"))
        places += [1 + place for place in medians["correct_length"]]
        back += [right.mean()] if broken.height else []
        kinds += [rows.select("kind", "exact_match")] if "kind" in rows.columns else []
        tokens = study.table("tokens", name)
        looked_at.append(0 if tokens is None else tokens["sample_id"].n_unique())
    if not places:
        return []
    at = " to ".join(dict.fromkeys(f"{end:g}" for end in (min(places), max(places))))
    parts = [
        f"has its first error at token {at} (medians,",
        f"yet {share_range(pl.Series(back))} of them,",
    ]
    if kinds:
        rates = pl.concat(kinds).drop_nulls().group_by("kind").agg(pl.mean("exact_match"))
        ends = [rates.sort("exact_match", "kind", descending=[d, d]).row(0) for d in (True, False)]
        (most, high), (least, low) = ends
        told = f"“{most}” {high:.0%} survive such a bypass, of the kind “{least}” {low:.0%}."
        parts += [told] if rates.height > 1 else []
    if min(looked_at):
        parts.append(f"chosen from the {counts(pl.Series(looked_at))} per model")
    return [Line("A model reads the prefix", parts)]


def _sample(study: Study, family: str, sample_id: int) -> Sample:
    """A sample; its tokens are ids, or text where there is a tokenizer."""
    row = study.samples[family].filter(sample_id=sample_id).row(0, named=True)
    models = [name for name, of in study.models if of == family]
    told = [f"{row['split']}, {row['copies']} times in the training data"]
    for name in models:
        rows = study.table("memorization", name)
        assert rows is not None
        exact = rows.filter(sample_id=sample_id).select("intervention", "exact_match")
        if exact.filter(WHOLE)["exact_match"].item():
            edited = exact.filter(~WHOLE)["exact_match"]
            told.append(f"broken by {(~edited).sum()} of {len(edited)} in {name}")
    prefix, tokens = row["prefix_length"], row["tokens"]
    suffix = tokens[prefix : prefix + row["suffix_length"]]
    file = study.data / "checkpoints" / models[0] / "tokenizer.json"
    words = [str(token) for token in suffix]
    if file.exists():
        tokenizer = Tokenizer.from_file(str(file))
        texts = [tokenizer.decode([token], skip_special_tokens=False) for token in suffix]
        words = [" ".join(text.replace("\n", "↵").split()) for text in texts]
    caption = f"{'; '.join(told)}), continued by {models[0]} after {prefix} tokens,"
    return Sample(caption, words, study.interventions[models[0]].to_list())


def _written(study: Study, model: str) -> list[str]:
    """The texts of a model: its name, how they were decoded, and the interventions."""
    rows = study.table("generations", model)
    if rows is None:
        return []
    return [
        f"{model}, {decoding}: prompt | {' | '.join(own['intervention'])} |"
        for [_, decoding], own in rows.group_by("prompt_id", "decoding", maintain_order=True)
    ]


def _collapse(study: Study) -> list[list[str]]:
    """How far the texts collapse: means over the prompts, geometric of perplexities."""
    rows: dict[tuple[str, str], list[str]] = {}
    heading = ["model", "bypassed"]
    means = {
        "perplexity": pl.col("baseline_perplexity").log().mean().exp(),
        "distinct": pl.mean("distinct_bigrams"),
    }
    for name, _ in study.models:
        frame = study.table("generations", name)
        by = None if frame is None else frame.group_by("decoding", maintain_order=True)
        for [decoding], own in by or ():
            heads = [f"{word}, {decoding}" for word in means]
            heading += [head for head in heads if head not in heading]
            each = own.group_by("intervention", maintain_order=True).agg(**means)
            for intervention, perplexity, distinct in each.iter_rows():
                cells = [number(perplexity), shares(distinct, None, None)]
                rows.setdefault((name, intervention), [name, intervention]).extend(cells)
    return [heading, *rows.values()]
