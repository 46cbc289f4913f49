"""Chooses the samples that the page shows token by token.

Memorized text can be private, so samples of real data are shown as token ids and places, unless
``show_text`` is set. Generated text contains no personal data and is always shown. Nothing here
needs torch or a network: tokens become text through the tokenizer file alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.manifests import trained_here
from pipeline.analysis.views import block_range
from pipeline.interventions.interventions import BASELINE
from pipeline.report.browser import Continuation, Family, Sample
from pipeline.report.numbers import SHARE, Number, Sentence, spread
from pipeline.samples.schemas import read_samples
from pipeline.workflow.errors import InputError

CHOSEN = ("most surviving", "most fragile", "right again", "famous", "control")
"""The reasons to show a sample, one sample of a family for each; and one of each record kind."""

PREFIX_TOKENS = 96
"""Longer prefixes are cut to their end."""

SUFFIX_TOKENS = 128
"""Longer suffixes are cut to their start."""

ROWS = 160
"""Interventions of a model that are shown; single heads are left out."""

BUDGET = 2_000_000
"""Characters of all samples together; when they are more, fewer samples are shown."""

_PER_TOKEN = ("log_prob", "rank", "margin")
"""Columns of ``tokens/MODEL.parquet``: a row for each intervention, sample and true token."""


def read_browser(
    data: Path,
    models: Sequence[tuple[str, str]],
    manifests: Sequence[Mapping[str, Any]],
    *,
    show_text: bool = False,
) -> tuple[list[Family], list[Sentence], list[str]]:
    """Choose samples of each family and read how each model continued them.

    Args:
        data: the study's folder, ``data/STUDY``.
        models: (name, family) of each.
        manifests: of the models' checkpoints; they say whose text is generated, and where a
            tokenizer lies.
        show_text: show the text of real data too.

    Returns:
        The families that have anything to show; the results that only single tokens show, as
        sentences; and what is missing, as sentences.
    """
    families, every, missing = [], list[_Model](), []
    for family in dict.fromkeys(family for _, family in models):
        names = [name for name, of in models if of == family]
        try:
            samples = read_samples(data, family)
        except InputError as error:
            missing.append(f"The samples of {family} cannot be shown: {error.problems[0].got}")
            continue
        read = []
        for model in names:
            try:
                read.append(_Model(data, model, samples))
            except (OSError, pl.exceptions.PolarsError) as error:
                got = str(error).partition("\n")[0]
                missing.append(f"{model} has no continuations to show: {got}.")
        every += read
        chosen = _choose(read, samples)
        if chosen:
            own = [m for m in manifests if m.get("name") in names]
            shown_rows = {model.name: model.interventions for model in read}
            families.append(_with_words(family, chosen, shown_rows, data, own, show_text))
    return families, _sentences(every), missing


class _Model:
    """One model's continuations, read lazily: a table takes gigabytes in the largest study.

    Args:
        data: the study's folder.
        name: of the model.
        samples: of its family.

    Raises:
        OSError: a table is missing.
        PolarsError: a table is damaged.
    """

    def __init__(self, data: Path, name: str, samples: pl.DataFrame) -> None:
        self.name = name
        self._scan = pl.scan_parquet(data / "memorization" / f"{name}.parquet")
        tokens = data / "tokens" / f"{name}.parquet"
        self._tokens = pl.scan_parquet(tokens) if tokens.exists() else None
        if self._tokens is not None:
            unknown = pl.any_horizontal(pl.col("log_prob", "margin").is_nan()).any()
            if self._tokens.select(unknown).collect().item():
                raise pl.exceptions.ComputeError(f"{tokens} has numbers that are NaN")
        listed = pl.read_parquet(data / "interventions" / f"{name}.parquet")
        whole = listed.filter(pl.col("heads").is_null())
        self.interventions: list[str] = whole["intervention"].head(ROWS).to_list()
        single = listed.filter(views.ONE_BLOCK).select(
            "intervention", pl.col("blocks").list.first().alias("block")
        )
        n_blocks = single["block"].max()
        late = [*block_range(int(n_blocks) + 1, "late")] if n_blocks is not None else []  # type: ignore[arg-type]
        # the last token of the true suffix
        true = pl.col("tokens").list.slice(pl.col("prefix_length"), pl.col("suffix_length"))
        kind = (
            pl.col("kind") if "kind" in samples.columns else pl.lit(None, pl.String).alias("kind")
        )
        last = samples.lazy().select("sample_id", true.list.last().alias("true"), kind)
        rows = self._scan.select(
            "intervention",
            "sample_id",
            "split",
            "exact_match",
            "correct_length",
            "decoded",
            pl.col("continuation").list.last().alias("last"),
        )
        recited = self._scan.filter(pl.col("exact_match"), intervention=BASELINE.name)
        self.rows = (
            rows.join(last, on="sample_id", how="left")
            .join(single.lazy(), on="intervention", how="left")
            .join(
                recited.select("sample_id", pl.lit(True).alias("recited")),
                on="sample_id",
                how="left",
            )
            .with_columns(
                pl.col("recited").fill_null(False),
                again=pl.col("decoded")
                & ~pl.col("exact_match")
                & pl.col("last").eq(pl.col("true")),
                late=pl.col("block").is_in(late),
            )
            .drop("last", "true")
            .collect()
        )

    @cached_property
    def tokenwise(self) -> pl.DataFrame:
        """The samples whose single tokens were looked at: sample_id."""
        if self._tokens is None:
            return pl.DataFrame(schema={"sample_id": pl.UInt32})
        return self._tokens.select("sample_id").unique().collect()

    def continuations(self, ids: Sequence[int]) -> dict[int, dict[str, Continuation]]:
        """sample_id -> intervention -> how it goes on."""
        wanted = pl.col("sample_id").is_in(ids) & pl.col("intervention").is_in(self.interventions)
        numbers = ("continuation", "suffix_log_prob", "min_margin")
        rows = self._scan.filter(wanted).select("sample_id", "intervention", *numbers)
        each: dict[tuple[int, str], list[list[float]]] = {}
        if self._tokens is not None:
            by_position = self._tokens.filter(wanted).sort("position")
            known = by_position.group_by("sample_id", "intervention").agg(*_PER_TOKEN)
            each = {(row[0], row[1]): list(row[2:]) for row in known.collect().iter_rows()}
        found: dict[int, dict[str, Continuation]] = {}
        for sample_id, intervention, tokens, log_prob, margin in (
            rows.drop_nulls("continuation").collect().iter_rows()
        ):
            own = each.get((sample_id, intervention), [])
            found.setdefault(sample_id, {})[intervention] = Continuation(
                tokens, log_prob, margin, own
            )
        return found


def _choose(models: Sequence[_Model], samples: pl.DataFrame) -> list[Sample]:
    """The samples to show with their continuations; only those that were decoded to the end."""
    if not models:
        return []
    decoded = pl.concat(
        [each.rows.filter("decoded").select("sample_id").unique() for each in models]
    )
    counts = [_breaks(each.rows).with_columns(model=pl.lit(each.name)) for each in models]
    broken = pl.concat(counts)
    ranked = (
        samples.join(decoded, on="sample_id", how="semi", maintain_order="left")
        .unique("suffix_group", keep="first", maintain_order=True)
        .join(
            broken.group_by("sample_id").agg(pl.sum("broken", "of", "again")),
            on="sample_id",
            how="left",
            maintain_order="left",
        )
        .with_columns(pl.col("broken", "of", "again").fill_null(0))
        .with_columns(
            (pl.col("broken") / pl.col("of")).fill_nan(0.0).alias("share"),
            (pl.col("again") / pl.col("broken")).fill_nan(0.0).alias("back"),
        )
    )
    looked_at = [each.tokenwise for each in models]
    if all(each.height for each in looked_at):
        ranked = ranked.join(pl.concat(looked_at).unique(), on="sample_id", how="semi")
    picked = _pick(ranked)
    ids = [row["sample_id"] for _, row in picked]
    continuations = {model.name: model.continuations(ids) for model in models}
    budget, found = BUDGET, list[Sample]()
    for why, row in picked:
        own = broken.filter(sample_id=row["sample_id"]).select("model", "broken", "of").rows()
        sample = _sample(why, row, continuations, {model: (n, of) for model, n, of in own})
        budget -= 12 * len(sample.suffix) * sum(map(len, sample.continuations.values()))
        if found and budget < 0:
            break
        found.append(sample)
    return found


def _breaks(rows: pl.DataFrame) -> pl.DataFrame:
    """sample_id, broken, of, again: of the samples that the unmodified model recites."""
    edited = rows.filter(pl.col("recited"), pl.col("intervention") != BASELINE.name)
    return edited.group_by("sample_id").agg(
        (~pl.col("exact_match")).sum().cast(pl.Int64).alias("broken"),
        pl.len().cast(pl.Int64).alias("of"),
        pl.col("again").sum().cast(pl.Int64),
    )


def _pick(ranked: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """(why, row) of the samples to show, each once."""
    recited = ranked.filter(pl.col("of") > 0, split="memorized")
    memorized = recited if recited.height else ranked.filter(split="memorized")
    by_share = memorized.sort("share", "sample_id")
    back = memorized.filter(pl.col("back") > 0)
    kinds = sorted(set(memorized["kind"].drop_nulls())) if "kind" in memorized.columns else []
    surviving, fragile, again, *others = CHOSEN
    orders = {
        surviving: by_share,
        fragile: memorized.sort("share", "sample_id", descending=[True, False]),
        again: back.sort("back", "sample_id", descending=[True, False]),
        **{f"kind {kind}": by_share.filter(kind=kind) for kind in kinds},
        **{split: ranked.filter(split=split).sort("sample_id") for split in others},
    }
    picked: dict[int, tuple[str, dict[str, Any]]] = {}
    for why, rows in orders.items():
        new = rows.filter(~pl.col("sample_id").is_in(list(picked)))
        if new.height:
            row = new.row(0, named=True)
            picked[row["sample_id"]] = (why, row)
    return list(picked.values())


_FIRST_ERROR = (
    "With one late block bypassed, a broken recitation has its first error at token "
    "{{ places|span(' to ') }} (medians, block by block), yet {{ again|span }} of them, model by "
    "model, get the last token right again{% if control %}; of control samples, which are no "
    "recitations, {{ control|span }} get it right{% endif %}."
)
_BY_KIND = (
    "Of records of the kind “{{ most }}” {{ high|percent(0) }} survive such a bypass, of the kind "
    "“{{ least }}” {{ low|percent(0) }}; the first survives more often in {{ alike|count }} of "
    "{{ of|plural('model') }}."
)
_CHOSEN_FROM = (
    "The samples below are chosen from the {{ analysed|count }} per model that were analysed token "
    "by token. Scroll a table sideways to see its last tokens."
)


def _sentences(models: Sequence[_Model]) -> list[Sentence]:
    """Sentences on what only single tokens show: for late blocks, over all models."""
    rows = [
        each.rows.filter(pl.col("late") & pl.col("recited") & (pl.col("split") == "memorized"))
        for each in models
    ]
    broken = [each.filter(~pl.col("exact_match"), "decoded") for each in rows]
    broken = [each for each in broken if each.height]
    if not broken:
        return []
    places = [
        1 + value
        for each in broken
        for value in each.group_by("intervention").agg(pl.median("correct_length"))[
            "correct_length"
        ]
    ]
    back = [float(each["again"].mean()) for each in broken]  # type: ignore[arg-type]
    never = [
        each.rows.filter("late", "decoded", ~pl.col("exact_match"), split="control")
        for each in models
    ]
    control = [float(each["again"].mean()) for each in never if each.height]  # type: ignore[arg-type]
    told = [
        Sentence(
            _FIRST_ERROR,
            {
                "places": spread("samples-broken/first-error", places, "tokens", "memorization"),
                "again": spread("samples-broken/right-again", back, table="memorization"),
                "control": spread("samples-broken/control", control, table="memorization")
                if control
                else None,
            },
        )
    ]
    by_kind = (
        pl.concat(rows).drop_nulls("kind").group_by("kind").agg(pl.col("exact_match").mean())
    ).sort("exact_match", "kind")
    if by_kind.height > 1:
        (least, low), (most, high) = by_kind.row(0), by_kind.row(-1)
        shares = {
            end: Number(f"samples-broken/{kind}/survive", share, unit=SHARE, table="memorization")
            for end, kind, share in (("low", least, low), ("high", most, high))
        }
        survive = [
            dict(each.group_by("kind").agg(pl.col("exact_match").mean()).iter_rows())
            for each in rows
        ]
        both = [each for each in survive if {most, least} <= set(each)]
        shares["alike"] = Number(
            "samples-broken/kinds-alike", sum(each[most] > each[least] for each in both)
        )
        shares["of"] = Number("samples-broken/kinds-of", len(both))
        told.append(Sentence(_BY_KIND, {"most": most, "least": least, **shares}))
    analysed = [model.tokenwise.height for model in models]
    if min(analysed):
        among = spread("samples-broken/analysed", analysed, "samples", "tokens")
        told.append(Sentence(_CHOSEN_FROM, {"analysed": among}))
    return told


def _sample(
    why: str,
    row: Mapping[str, Any],
    continuations: Mapping[str, Mapping[int, Mapping[str, Continuation]]],
    broken: Mapping[str, tuple[int, int]],
) -> Sample:
    prefix_length, suffix_length = row["prefix_length"], row["suffix_length"]
    prefix = row["tokens"][:prefix_length]
    suffix = row["tokens"][prefix_length : prefix_length + suffix_length][:SUFFIX_TOKENS]
    return Sample(
        row["sample_id"],
        why,
        row["split"],
        row["copies"],
        prefix[-PREFIX_TOKENS:],
        suffix,
        (prefix_length, suffix_length),
        broken,
        {
            model: {
                name: replace(
                    each,
                    tokens=each.tokens[: len(suffix)],
                    each=[numbers[: len(suffix)] for numbers in each.each],
                )
                for name, each in found[row["sample_id"]].items()
            }
            for model, found in continuations.items()
            if row["sample_id"] in found
        },
    )


def _with_words(
    family: str,
    samples: Sequence[Sample],
    interventions: Mapping[str, Sequence[str]],
    data: Path,
    manifests: Sequence[Mapping[str, Any]],
    show_text: bool,
) -> Family:
    """The family with its tokens as text, where that may and can be."""
    made = Family(family, samples, interventions)
    real = not any(map(trained_here, manifests))  # of a family, all are or none is
    if real and not show_text:
        return replace(made, why_ids="text is turned off (report.show_text)")
    file = _tokenizer_file(data, manifests)
    if file is None:
        return replace(made, why_ids="no tokenizer.json of its models is on this machine")
    used = {token for sample in samples for token in (*sample.prefix, *sample.suffix)}
    for sample in samples:
        for by_intervention in sample.continuations.values():
            used.update(*(each.tokens for each in by_intervention.values()))
    return replace(made, words=_words(file, sorted(used)), private=real)


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
