"""Some samples token by token under every intervention: what the page's sample browser shows.

Memorized text can be private, so of real data only token ids and places are shown, unless asked
for. Text of a generated world is nobody's and is always shown. Nothing here needs torch or a
network: tokens become text through the tokenizer file alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.manifests import trained_here
from pipeline.analysis.text import visible
from pipeline.interventions.interventions import BASELINE
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError

BROKEN, WHOLE, CONTROL, FAMOUS = 8, 4, 4, 4
"""Samples a family: those that most interventions break, those that fewest do, control, famous."""

PREFIX_TOKENS = 96
"""Of a longer prefix only the end is shown."""

SUFFIX_TOKENS = 128
"""Of a longer suffix only the start is shown."""

WORD_CHARACTERS = 64
"""Of a longer token only the start is shown."""

NAME_CHARACTERS = 200
"""Of a longer name likewise."""

BUDGET = 3_000_000
"""Characters of all samples together; when they are more, fewer samples are shown."""


@dataclass(frozen=True)
class Sample:
    """One sample and how it was continued.

    Args:
        sample_id: as in the samples table.
        split: memorized, control or famous.
        copies: times in the training data, where known.
        prefix: token ids, at most the last `PREFIX_TOKENS`.
        suffix: token ids, at most the first `SUFFIX_TOKENS`.
        lengths: tokens of the whole prefix and the whole suffix.
        broken: model -> how many interventions end its exact match, of how many; only models that
            recite it with nothing bypassed.
        continuations: model -> intervention -> token ids, as many as `suffix`.
        blocks: model -> the interventions that bypass one block alone.
    """

    sample_id: int
    split: str
    copies: int | None
    prefix: Sequence[int]
    suffix: Sequence[int]
    lengths: tuple[int, int]
    broken: Mapping[str, tuple[int, int]]
    continuations: Mapping[str, Mapping[str, Sequence[int]]]
    blocks: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def worst(self, model: str) -> str:
        """The single block whose bypass leaves the fewest right tokens; the first of several.

        The baseline where the model has no single block.
        """
        return max(
            (name for name in self.blocks.get(model, ()) if name in self.continuations[model]),
            key=lambda name: len(wrong(self.suffix, self.continuations[model][name])),
            default=BASELINE.name,
        )


@dataclass(frozen=True)
class Family:
    """The chosen samples of one family.

    Args:
        name: of the family.
        samples: memorized ones first.
        words: token id -> text; empty where ids are shown.
        private: whether the text of real data is shown.
        why_ids: why ids are shown; empty where text is.
    """

    name: str
    samples: Sequence[Sample]
    words: Mapping[int, str] = field(default_factory=dict)
    private: bool = False
    why_ids: str = ""

    @property
    def blocks(self) -> Mapping[str, Sequence[str]]:
        """Model -> the interventions that bypass one block alone."""
        return {name: names for each in self.samples for name, names in each.blocks.items()}

    @property
    def models(self) -> list[str]:
        """The models that have continued any of the samples."""
        return list(dict.fromkeys(name for each in self.samples for name in each.continuations))

    def data(self) -> dict[str, Any]:
        """What the script needs, as JSON values; only what differs from the suffix is kept.

        Models are told by their place in `models`, since a name may hold anything.
        """
        return {
            "models": [shown(name, NAME_CHARACTERS) for name in self.models],
            "blocks": [list(self.blocks.get(model, ())) for model in self.models],
            "words": {str(token): shown(word) for token, word in self.words.items()},
            "samples": {
                str(sample.sample_id): {
                    "suffix": list(sample.suffix),
                    "continuations": [
                        {
                            name: {str(i): tokens[i] for i in wrong(sample.suffix, tokens)}
                            for name, tokens in sample.continuations.get(model, {}).items()
                        }
                        for model in self.models
                    ],
                }
                for sample in self.samples
            },
        }


def shown(text: str, most: int = WORD_CHARACTERS) -> str:
    """`text` fit to be seen: cut, its line breaks marked, what cannot be seen spelled out."""
    short = text if len(text) <= most else text[:most] + "…"
    return visible(short).replace("\n", "↵\n")


def wrong(suffix: Sequence[int], continuation: Sequence[int]) -> list[int]:
    """The places, from 0, where the continuation has another token than the suffix."""
    return [i for i, (a, b) in enumerate(zip(suffix, continuation, strict=True)) if a != b]


def places(found: Iterable[int]) -> str:
    """Places from 0 written for a reader, counted from 1: ``3, 5–9``."""
    runs = []
    for _, run in groupby(enumerate(found), key=lambda pair: pair[1] - pair[0]):
        each = [place + 1 for _, place in run]
        runs.append(str(each[0]) if len(each) == 1 else f"{each[0]}–{each[-1]}")
    return ", ".join(runs)


def read_browser(
    data: Path,
    models: Sequence[tuple[str, str]],
    manifests: Sequence[Mapping[str, Any]],
    *,
    show_text: bool = False,
) -> tuple[list[Family], list[str]]:
    """Choose samples of each family and read how each model continued them.

    Args:
        data: the study's folder, ``data/STUDY``.
        models: (name, family) of each.
        manifests: of the models' checkpoints; they say whose text is generated, and where a
            tokenizer lies.
        show_text: show the text of real data too.

    Returns:
        The families that have anything to show, and what is missing, as sentences.
    """
    families, missing = [], []
    for family in dict.fromkeys(family for _, family in models):
        names = [name for name, of in models if of == family]
        try:
            samples = tables.read(data / "samples" / f"{family}.parquet", tables.SAMPLES)
        except InputError as error:
            missing.append(f"The samples of {family} cannot be shown: {error.problems[0].got}")
            continue
        chosen, problems = _choose(data, names, samples)
        missing += problems
        if chosen:
            own = [m for m in manifests if m.get("name") in names]
            families.append(_with_words(family, chosen, data, own, show_text))
    return families, missing


def as_json(families: Sequence[Family]) -> str:
    """What the script needs of all families, fit to stand inside a script element."""
    text = json.dumps([family.data() for family in families], separators=(",", ":"))
    # JSON says the same with these escaped, and no text can end the element
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _choose(
    data: Path, models: Sequence[str], samples: pl.DataFrame
) -> tuple[list[Sample], list[str]]:
    """The samples to show with their continuations, and what is missing.

    Only samples whose continuations were decoded to the end are shown.
    """
    tables_of, counts, missing = {}, [], []
    blocks: dict[str, list[str]] = {}
    decoded = list[pl.DataFrame]()
    for model in models:
        path = data / "memorization" / f"{model}.parquet"
        scan = pl.scan_parquet(path)  # a whole table has gigabytes in the largest study
        try:
            listed = pl.read_parquet(data / "interventions" / f"{model}.parquet")
            blocks[model] = listed.filter(views.ONE_BLOCK)["intervention"].to_list()
            counts.append(_breaks(scan).with_columns(model=pl.lit(model)))
            decoded.append(scan.filter("decoded").select("sample_id").unique().collect())
        except (OSError, pl.exceptions.PolarsError):
            missing.append(f"{model} has no continuations to show: {path} is missing or damaged.")
            continue
        tables_of[model] = scan
    if not counts:
        return [], missing
    each = pl.concat(counts)
    broken = each.group_by("sample_id").agg(pl.sum("broken", "of"))
    ranked = (
        samples.join(pl.concat(decoded), on="sample_id", how="semi", maintain_order="left")
        .unique("suffix_group", keep="first", maintain_order=True)
        .join(broken, on="sample_id", how="left", maintain_order="left")
        .with_columns(pl.col("broken", "of").fill_null(0))
        .with_columns((pl.col("broken") / pl.col("of")).fill_nan(0.0).alias("share"))
    )
    picked = _pick(ranked)
    ids = picked["sample_id"].to_list()
    continuations = {model: _continuations(scan, ids) for model, scan in tables_of.items()}
    budget, shown = BUDGET, list[Sample]()
    for row in picked.iter_rows(named=True):
        own = each.filter(sample_id=row["sample_id"]).select("model", "broken", "of").rows()
        sample = _sample(row, continuations, blocks, {model: (n, of) for model, n, of in own})
        n_rows = sum(len(each) for each in sample.continuations.values())
        budget -= 12 * len(sample.suffix) * n_rows
        if shown and budget < 0:
            break
        shown.append(sample)
    return shown, missing


def _breaks(scan: pl.LazyFrame) -> pl.DataFrame:
    """sample_id, broken, of: of the samples that the unmodified model recites."""
    frame = scan.select("intervention", "sample_id", "exact_match").collect()
    recited = frame.filter(pl.col("exact_match"), intervention=BASELINE.name)
    return (
        frame.filter(pl.col("intervention") != BASELINE.name)
        .join(recited, on="sample_id", how="semi")
        .group_by("sample_id")
        .agg(
            (~pl.col("exact_match")).sum().cast(pl.Int64).alias("broken"),
            pl.len().cast(pl.Int64).alias("of"),
        )
    )


def _pick(ranked: pl.DataFrame) -> pl.DataFrame:
    memorized = ranked.filter(split="memorized").sort(
        "share", "sample_id", descending=[True, False]
    )
    most = memorized.head(BROKEN)
    rest = memorized.slice(most.height).sort("share", "sample_id")
    fewest = rest.filter(pl.col("of") > 0).head(WHOLE)
    control = ranked.filter(split="control").sort("sample_id").head(CONTROL)
    famous = ranked.filter(split="famous").sort("sample_id").head(FAMOUS)
    return pl.concat([most, fewest, control, famous])


def _continuations(scan: pl.LazyFrame, ids: Sequence[int]) -> dict[int, dict[str, list[int]]]:
    """sample_id -> intervention -> token ids."""
    rows = (
        scan.filter(pl.col("sample_id").is_in(ids))
        .select("sample_id", "intervention", "continuation")
        .collect()
    )
    found: dict[int, dict[str, list[int]]] = {}
    for sample_id, intervention, tokens in rows.iter_rows():
        found.setdefault(sample_id, {})[intervention] = tokens
    return found


def _sample(
    row: Mapping[str, Any],
    continuations: Mapping[str, Mapping[int, Mapping[str, Sequence[int]]]],
    blocks: Mapping[str, Sequence[str]],
    broken: Mapping[str, tuple[int, int]],
) -> Sample:
    prefix_length, suffix_length = row["prefix_length"], row["suffix_length"]
    prefix = row["tokens"][:prefix_length]
    suffix = row["tokens"][prefix_length : prefix_length + suffix_length][:SUFFIX_TOKENS]
    return Sample(
        row["sample_id"],
        row["split"],
        row["copies"],
        prefix[-PREFIX_TOKENS:],
        suffix,
        (prefix_length, suffix_length),
        broken,
        {
            model: {name: tokens[: len(suffix)] for name, tokens in found[row["sample_id"]].items()}
            for model, found in continuations.items()
            if row["sample_id"] in found
        },
        blocks,
    )


def _with_words(
    family: str,
    samples: Sequence[Sample],
    data: Path,
    manifests: Sequence[Mapping[str, Any]],
    show_text: bool,
) -> Family:
    """The family with its tokens as text, where that may and can be."""
    real = not any(map(trained_here, manifests))  # of a family, all are or none is
    if real and not show_text:
        return Family(family, samples, why_ids="text was not asked for")
    file = _tokenizer_file(data, manifests)
    if file is None:
        return Family(family, samples, why_ids="no tokenizer.json of its models is on this machine")
    used = {token for sample in samples for token in (*sample.prefix, *sample.suffix)}
    for sample in samples:
        for by_intervention in sample.continuations.values():
            used.update(*by_intervention.values())
    return Family(family, samples, _words(file, sorted(used)), private=real)


def _tokenizer_file(data: Path, manifests: Sequence[Mapping[str, Any]]) -> Path | None:
    """The tokenizer of the first checkpoint that has one on this machine; nothing is fetched."""
    from huggingface_hub import try_to_load_from_cache

    for manifest in manifests:
        beside = data / "checkpoints" / str(manifest["name"]) / "tokenizer.json"
        if beside.exists():
            return beside
        origin = manifest.get("origin")
        origin = origin if isinstance(origin, Mapping) else {}
        if "folder" in origin and (file := Path(origin["folder"]) / "tokenizer.json").exists():
            return file
        if "repo" in origin and "commit" in origin:
            cached = try_to_load_from_cache(
                origin["repo"], "tokenizer.json", revision=origin["commit"]
            )
            if isinstance(cached, str):
                return Path(cached)
    return None


def _words(file: Path, tokens: Sequence[int]) -> dict[int, str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return {token: tokenizer.decode([token], skip_special_tokens=False) for token in tokens}
