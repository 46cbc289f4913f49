"""Chooses the samples that the page shows token by token.

Memorized text can be private, so samples of real data are shown as token ids and places, unless
``show_text`` is set. Generated text contains no personal data and is always shown. Nothing here
needs torch or a network: tokens become text through the tokenizer file alone.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.analysis import views
from pipeline.analysis.manifests import trained_here
from pipeline.analysis.statistics import clustered_rates
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.schemas import TOKENS
from pipeline.report.browser import Family, Sample, packed, row
from pipeline.report.numbers import SHARE, Number, Sentence, across, spread
from pipeline.samples.schemas import read_samples
from pipeline.workflow.errors import InputError

CHOSEN = ("most surviving", "most fragile", "right again", "famous", "control")
"""The reasons to show a sample, one sample of a family for each; and one of each record kind."""

UNRECITED = ("likeliest", "least likely", "right again", "famous", "control")
"""Those where no sample is recited."""

PREFIX_TOKENS = 96
"""Longer prefixes are cut to their end."""

SUFFIX_TOKENS = 128
"""Longer suffixes are cut to their start."""

ROWS = 160
"""Interventions of a model that are shown; single heads are left out."""

BUDGET = 2_000_000
"""Characters of all samples together; when they are more, fewer samples are shown."""


def read_browser(
    data: Path,
    models: Sequence[tuple[str, str]],
    manifests: Sequence[Mapping[str, Any]],
    *,
    show_text: bool = False,
) -> tuple[list[Family], list[Sentence], list[str]]:
    """Choose samples of each family and read how each model, (name, family), continued them.

    From the study's folder, ``data/STUDY``. The manifests say whose text is generated, and where a
    tokenizer lies. With `show_text` the text of real data is shown too.

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

    Raises:
        OSError: a table is missing.
        PolarsError: a table is damaged.
    """

    def __init__(self, data: Path, name: str, samples: pl.DataFrame) -> None:
        self.name = name
        self._scan = pl.scan_parquet(data / "memorization" / f"{name}.parquet")
        self._tokens = pl.LazyFrame(schema={key: column.dtype for key, column in TOKENS.items()})
        if (tokens := data / "tokens" / f"{name}.parquet").exists():
            self._tokens = pl.scan_parquet(tokens)
        unknown = pl.any_horizontal(pl.col("log_prob", "margin").is_nan()).any()
        if self._tokens.select(unknown).collect().item():
            raise pl.exceptions.ComputeError(f"{tokens} has numbers that are NaN")
        listed = pl.read_parquet(data / "interventions" / f"{name}.parquet")
        several = listed.filter(pl.col("heads").is_null())
        self.interventions: list[str] = several["intervention"].head(ROWS).to_list()
        first = pl.col("blocks").list.first()
        single = listed.filter(views.ONE_BLOCK).with_columns(block=first, model=pl.lit(name))
        late = views.in_range(single, "late")["intervention"].to_list()
        end = pl.col("prefix_length") + pl.col("suffix_length")
        true = pl.col("tokens").list.get(end - 1)
        known = samples.select("sample_id", "suffix_group", true=true)
        rows = self._scan.select(
            *("intervention", "sample_id", "split", "exact_match", "correct_length", "decoded"),
            "suffix_log_prob",
            last=pl.col("continuation").list.last(),
        ).join(known.lazy(), on="sample_id", how="left")
        exact, unmodified = pl.col("exact_match"), pl.col("intervention") == BASELINE.name
        self.rows = (
            rows.with_columns(
                model=pl.lit(name),
                recited=(exact & unmodified).any().over("sample_id"),
                again=pl.col("decoded") & ~exact & (pl.col("last") == pl.col("true")),
                late=pl.col("intervention").is_in(late),
            )
            .drop("last", "true")
            .collect()
        )

    @cached_property
    def tokenwise(self) -> pl.DataFrame:
        """The samples whose single tokens were looked at: sample_id."""
        return self._tokens.select("sample_id").unique().collect()

    def continuations(self, ids: Sequence[int]) -> Mapping[int, Sequence[Any]]:
        """sample_id -> name, tokens, log probability, margin, numbers of each token, in rows."""
        wanted = pl.col("sample_id").is_in(ids) & pl.col("intervention").is_in(self.interventions)
        key = ["sample_id", "intervention"]
        by_position = self._tokens.filter(wanted).sort("position")
        each = by_position.group_by(key).agg("log_prob", "rank", "margin")
        rows = self._scan.filter(wanted).drop_nulls("continuation")
        rows = rows.select(*key, "continuation", "suffix_log_prob", "min_margin")
        joined = rows.join(each, on=key, how="left", maintain_order="left")
        return joined.collect().rows_by_key("sample_id")


def _choose(models: Sequence[_Model], samples: pl.DataFrame) -> list[Sample]:
    """The samples to show with their continuations; only those that were decoded to the end."""
    if not models:
        return []
    rows = pl.concat([each.rows for each in models])
    edited = rows.filter(pl.col("recited"), pl.col("intervention") != BASELINE.name)
    wrong = (~pl.col("exact_match")).sum()
    broken = edited.group_by("sample_id", "model", maintain_order=True).agg(
        broken=wrong, of=pl.len()
    )
    fragility = edited.group_by("sample_id").agg(
        share=wrong / pl.len(), back=(pl.sum("again") / wrong).fill_nan(0)
    )
    likely = views.baseline(rows).group_by("sample_id").agg(likely=pl.mean("suffix_log_prob"))
    ranked = (
        samples.join(rows.filter("decoded"), on="sample_id", how="semi", maintain_order="left")
        .unique("suffix_group", keep="first", maintain_order=True)
        .join(fragility, on="sample_id", how="left", maintain_order="left")
        .join(likely, on="sample_id", how="left", maintain_order="left")
    )
    looked_at = [each.tokenwise for each in models]
    if all(each.height for each in looked_at):
        ranked = ranked.join(pl.concat(looked_at).unique(), on="sample_id", how="semi")
    picked = _pick(ranked)
    ids = [row["sample_id"] for _, row in picked]
    continued = {model.name: model.continuations(ids) for model in models}
    budget, found = BUDGET, list[Sample]()
    for why, of in picked:
        own = broken.filter(sample_id=of["sample_id"]).drop("sample_id")
        sample = _sample(why, of, continued, own.rows_by_key("model", unique=True))
        budget -= 12 * len(sample.suffix) * sum(map(len, sample.rows.values()))
        if found and budget < 0:
            break
        found.append(sample)
    return found


def _pick(ranked: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """(why, row) of the samples to show, each once."""
    memorized = ranked.filter(split="memorized")
    recited = memorized.drop_nulls("share")
    memorized = recited if recited.height else memorized
    order = "share" if recited.height else -pl.col("likely")
    by_share = memorized.sort(order, "sample_id")
    back = memorized.filter(pl.col("back") > 0)
    kinds = sorted(set(memorized["kind"].drop_nulls())) if "kind" in memorized.columns else []
    surviving, fragile, again, *others = CHOSEN if recited.height else UNRECITED
    orders = {
        surviving: by_share,
        fragile: memorized.sort(order, "sample_id", descending=[True, False]),
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
    "With one late block bypassed, a broken recitation of a decoded sample has its first error at "
    "token {{ places|span(' to ') }} (medians, block by block). {% if again|length > 1 %}By model, "
    "{% endif %}{{ again|across }} of them, from {{ broken|count }} samples, get the last token "
    "right again{% if control %}; of control samples, which are no recitations, "
    "{{ control|across }}{% endif %}."
)
_CHOSEN_FROM = (
    "The samples below are chosen from the {{ analysed|count }} per model that were analysed token "
    "by token. Scroll a table sideways to see its last tokens."
)


def _sentences(models: Sequence[_Model]) -> list[Sentence]:
    """Sentences on what only single tokens show: for late blocks, over all models."""
    if not models:
        return []
    late = pl.concat([each.rows for each in models]).filter("late")
    recited = late.filter("recited", split="memorized")
    wrong = pl.col("decoded") & ~pl.col("exact_match")
    broken = recited.filter(wrong)
    if not broken.height:
        return []
    places = broken.group_by("model", "intervention").agg(pl.median("correct_length") + 1)
    place, table = "samples-broken", "memorization"
    numbers = broken.group_by("model").agg(pl.n_unique("sample_id"))["sample_id"]
    values: dict[str, Any] = {
        "places": spread(f"{place}/first-error", places["correct_length"], "tokens", table),
        "again": across(f"{place}/right-again", _right_again(broken)),
        "broken": spread(f"{place}/samples", numbers, "samples", table),
        "control": across(f"{place}/control", _right_again(late.filter(wrong, split="control"))),
    }
    told = [Sentence(_FIRST_ERROR, values)]
    analysed = [model.tokenwise.height for model in models]
    if min(analysed):
        among = spread(f"{place}/analysed", analysed, "samples", "tokens")
        told.append(Sentence(_CHOSEN_FROM, {"analysed": among}))
    return told


def _right_again(rows: pl.DataFrame) -> list[Number]:
    """Of each model the share of broken continuations whose last token is right, by sample."""
    made = []
    for _, part in rows.group_by("model", maintain_order=True):
        outcomes = part["again"].to_numpy()[:, None]
        rate = clustered_rates(outcomes, part["suffix_group"].to_numpy())
        made.append(Number("", *rate.first, SHARE, "memorization"))
    return made


def _sample(
    why: str,
    of: Mapping[str, Any],
    continued: Mapping[str, Mapping[int, Sequence[Any]]],
    broken: Mapping[str, tuple[int, int]],
) -> Sample:
    at, length = of["prefix_length"], of["suffix_length"]
    suffix = of["tokens"][at : at + length][:SUFFIX_TOKENS]
    n = len(suffix)
    known = {
        model: rows for model, found in continued.items() if (rows := found.get(of["sample_id"]))
    }
    return Sample(
        sample_id=of["sample_id"],
        why=why,
        split=of["split"],
        copies=of["copies"],
        prefix=of["tokens"][:at][-PREFIX_TOKENS:],
        suffix=suffix,
        lengths=(at, length),
        broken=broken,
        rows={
            model: {name: row(suffix, tokens[:n], *numbers[:2]) for name, tokens, *numbers in rows}
            for model, rows in known.items()
        },
        each={
            model: {
                name: packed([column[:n] for column in each])
                for name, _, _, _, *each in rows
                if each[0] is not None
            }
            for model, rows in known.items()
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
    words, why = dict[int, str](), ""
    real = not any(map(trained_here, manifests))  # of a family, all are or none is
    if real and not show_text:
        why = "text is turned off (report.show_text)"
    elif (file := tokenizer_file(data, manifests)) is None:
        why = "no tokenizer.json of its models is on this machine"
    else:
        words = _words(file, samples)
    return Family(family, samples, interventions, words, real and not why, why)


def tokenizer_file(data: Path, manifests: Sequence[Mapping[str, Any]]) -> Path | None:
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


def _words(file: Path, samples: Sequence[Sample]) -> dict[int, str]:
    """Token id -> text, of every token of the samples and of their continuations."""
    from tokenizers import Tokenizer

    tokenizer, used = Tokenizer.from_file(str(file)), set[int]()
    for sample in samples:
        used.update(sample.prefix, sample.suffix)
        for rows in sample.rows.values():
            used.update(*(continued[3:] for continued in rows.values()))
    return {token: tokenizer.decode([token], skip_special_tokens=False) for token in sorted(used)}
