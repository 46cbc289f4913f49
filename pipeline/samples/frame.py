"""Builds the samples table from the token ids of any source, and checks it before use."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from pipeline.samples.duplicates import suffix_groups
from pipeline.samples.schemas import SAMPLES, SPLITS
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten


def samples_frame(
    tokens: NDArray[np.integer],
    prefix_length: int,
    splits: Sequence[str],
    copies: Sequence[int | None],
) -> pl.DataFrame:
    """The samples table of N samples of equal length.

    Args:
        tokens: (N, P + S) token ids.
        prefix_length: P, tokens; the rest is the suffix.
        splits: (N,) memorized, exposed, control or famous.
        copies: (N,) times that a sample is in the training data; None where that is unknown.

    Returns:
        SAMPLES; `sample_id` is the row of `tokens`, and samples whose suffixes are equal or
        nearly so share a `suffix_group` (see `duplicates`), so that intervals can be clustered by
        it.
    """
    suffixes = tokens[:, prefix_length:]
    count = len(tokens)
    columns = {
        "sample_id": np.arange(count),
        "split": splits,
        "tokens": tokens.tolist(),
        "prefix_length": np.full(count, prefix_length),
        "suffix_length": np.full(count, suffixes.shape[1]),
        "suffix_group": suffix_groups(suffixes),
        "copies": copies,
    }
    return pl.DataFrame(columns, schema=tables.dtypes(SAMPLES))


def first_tokens(
    frame: pl.DataFrame, prefix_length: int, suffix_length: int, what: str, remedy: str
) -> NDArray[np.integer]:
    """(N, P + S) the first tokens of each row.

    The first column is the number of each row. `what` a row is, and the `remedy` for one that is
    too short, are for the error.

    Raises:
        InputError: a row has fewer.
    """
    length = prefix_length + suffix_length
    counts = frame.select(cs.first(), count=pl.col("tokens").list.drop_nulls().list.len())
    if short := counts.filter(pl.col("count") < length).rows():
        raise bad_input(
            first_of(f"{what} {short[0][0]}", len(short)),
            f"{short[0][1]} tokens",
            f"{length} or more: {prefix_length} of prefix and {suffix_length} of suffix",
            remedy,
        )
    return np.array(frame["tokens"].list.head(length).to_list())


def window(
    passages: NDArray[np.integer], whole_prefix: int, prefix_length: int, suffix_length: int
) -> NDArray[np.integer]:
    """(N, P + S) the last P of the prefix tokens of passages (N, T), and the first S after them.

    P is at most `whole_prefix`, the tokens of a passage's prefix; the paper uses the whole passage.
    """
    return passages[:, whole_prefix - prefix_length : whole_prefix + suffix_length]


def split_of(copies: int | None, memorized_copies: int) -> str:
    """The split of a sample with this number of copies in the training data; None: unknown.

    With `memorized_copies` or more, at least 1, it is memorized; with fewer exposed, without any
    control, and famous where the number is unknown.
    """
    if copies is None:
        return "famous"
    if copies >= memorized_copies:
        return "memorized"
    return "exposed" if copies else "control"


def with_control(
    memorized: NDArray[np.integer], control: NDArray[np.integer], prefix_length: int
) -> pl.DataFrame:
    """The samples table of memorized and control samples, (·, P + S) each, of unknown copies."""
    splits = ["memorized"] * len(memorized) + ["control"] * len(control)
    tokens = np.concatenate([memorized.astype(np.uint32), control.astype(np.uint32)])
    return samples_frame(tokens, prefix_length, splits, [None] * len(tokens))


def of_each_split(samples: pl.DataFrame, splits: Sequence[str], count: int) -> pl.DataFrame:
    """`count` samples of each split, spread evenly over it; all of a split that has fewer."""
    parts = []
    for split in splits:
        of_split = samples.filter(split=split)
        n = min(count, of_split.height)
        parts.append(of_split[[i * of_split.height // n for i in range(n)]])
    return pl.concat(parts)


def first_of(first: str, count: int) -> str:
    """The first of `count` that have one problem, as an error names them."""
    return first if count == 1 else f"{first} and {count - 1} more"


def check_samples(samples: pl.DataFrame, vocabulary: int, context: int) -> None:
    """Raise if samples do not fit a model, before it is loaded.

    Args:
        samples: as `SAMPLES`.
        vocabulary: token ids that the model and its tokenizer know.
        context: the longest text that the model takes, tokens.

    Raises:
        InputError: samples of several lengths or longer than the context, token ids beyond the
            vocabulary or missing, an id twice, an unknown split; all at once.
    """
    if problems := [Problem(*each) for each in _misfits(samples, vocabulary, context)]:
        raise InputError(*problems)


def _misfits(
    samples: pl.DataFrame, vocabulary: int, context: int
) -> Iterator[tuple[str, str, str, str]]:
    """What, got, expected and remedy of each problem."""
    again = "make the samples table again"
    lengths = samples.select("prefix_length", "suffix_length").unique(maintain_order=True)
    if len(lengths) != 1:
        got = "; ".join(f"{p} + {s}" for p, s in lengths.head(5).rows()) or "no samples"
        expected = "one prefix and one suffix length"
        yield "lengths of the samples", got, expected, f"{again} for each pair of lengths"
    prefix, suffix = pl.col("prefix_length").cast(pl.Int64), pl.col("suffix_length")
    longest = samples.select((prefix + suffix).max()).item() or 0
    if longest > context:
        expected = f"at most {context}, the model's context"
        yield "length of the samples", f"{longest} tokens", expected, "shorten prefix or suffix"
    count, largest = pl.col("tokens").list.drop_nulls().list.len(), pl.col("tokens").list.max()
    for wrong, value, expected, remedy in (
        (
            (count != prefix + suffix) | (prefix < 1) | (suffix < 1),
            pl.format("{} tokens, {} of prefix, {} of suffix", count, prefix, suffix),
            "a prefix and a suffix of 1 token or more each, and no other token",
            again,
        ),
        (
            largest >= vocabulary,
            pl.format("token id {}", largest),
            f"ids below {vocabulary}, the model's vocabulary",
            "use the samples that were made for this model's tokenizer",
        ),
    ):
        if found := samples.filter(wrong).select("sample_id", value.alias("got")).rows():
            yield first_of(f"sample {found[0][0]}", len(found)), found[0][1], expected, remedy
    if len(twice := samples.filter(pl.col("sample_id").is_duplicated())):
        got = f"{len(twice)} samples with an id that another has"
        yield f"sample {twice['sample_id'][0]}", got, "ids that are unique within the table", again
    if strange := sorted(set(samples["split"].unique()) - set(SPLITS)):
        expected = "of " + ", ".join(SPLITS)
        yield "splits of the samples", shorten(strange), expected, "name the splits so"
