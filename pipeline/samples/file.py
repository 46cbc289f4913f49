"""The samples of a family from a user's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pipeline.samples.frame import first_tokens, samples_frame
from pipeline.samples.table_file import is_running_text, read
from pipeline.workflow.errors import bad_input

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedTokenizerBase


def samples(
    path: Path,
    tokenizer: PreTrainedTokenizerBase | None,
    prefix_length: int,
    suffix_length: int,
    *,
    skip_short: bool,
) -> pl.DataFrame:
    """The samples table from a user's file.

    Each row of a table gives its first P + S tokens. Plain text is cut into consecutive samples of
    P + S tokens; a shorter rest at the end is left out.

    Args:
        path: as `table_file.read` takes it. ``tokens`` is used where there is ``text`` too.
            Without ``split`` all samples are memorized. Samples with equal suffixes count as one
            cluster in intervals, or those with an equal ``group`` where there is such a column.
        tokenizer: cuts the text, without special tokens; None: there is none.
        prefix_length: P, tokens.
        suffix_length: S, tokens.
        skip_short: leave out samples of fewer than P + S tokens, instead of raising an error.

    Returns:
        As `SAMPLES`; ``sample_id`` counts the samples that were taken, and the columns ``row``
        (u32, from 0) and ``line`` (u32, from 1; null where unknown, as of plain text if the
        tokenizer does not say where its tokens lie) have their places in the file.

    Raises:
        InputError: as for `table_file.read`; text without a tokenizer; a sample that is too short;
            or no sample is left.
    """
    total = prefix_length + suffix_length
    frame, of_text = read(path), is_running_text(path)
    places: list[Any] = []  # the first and the last character of each token of plain text
    if "tokens" not in frame.columns:
        if tokenizer is None:
            raise bad_input(
                str(path),
                "text, and no tokenizer",
                "a column `tokens`, or a tokenizer",
                "name the model whose tokenizer cuts the text: file.tokenizer of the family",
            )
        cut = tokenizer(
            frame["text"].to_list(),
            add_special_tokens=False,
            verbose=False,
            return_offsets_mapping=of_text and tokenizer.is_fast,
        )
        [places] = cut.get("offset_mapping", [places])
        frame = frame.with_columns(pl.Series("tokens", cut["input_ids"], pl.List(pl.Int64)))
    elif "text" in frame.columns:
        print("the samples have both `tokens` and `text`: `tokens` is used", flush=True)
    if of_text:
        text, whole = frame.select("text", "tokens").row(0)
        firsts = range(0, max(total, len(whole) - total + 1), total)
        lines = [1 + text.count("\n", 0, places[n][0]) if places else None for n in firsts]
        frame = pl.DataFrame(
            {"tokens": [whole[first : first + total] for first in firsts], "line": lines},
            {"tokens": pl.List(pl.Int64), "line": pl.UInt32},
        ).with_row_index("row")
    if skip_short:
        frame = frame.filter(pl.col("tokens").list.len() >= total)
    if frame.is_empty():
        raise bad_input(str(path), "no sample", "one or more", "name another file")
    remedy = (
        "shorten prefix_length or suffix_length, or leave such samples out: skip_short; of an "
        "audit the options --prefix-length, --suffix-length, --skip-short"
    )
    tokens = first_tokens(frame, prefix_length, suffix_length, f"{path}: row", remedy)
    told = {name: frame[name].to_list() for name in ("split", "copies") if name in frame.columns}
    made = samples_frame(
        tokens,
        prefix_length,
        told.get("split", ["memorized"] * len(frame)),
        told.get("copies", [None] * len(frame)),
    ).with_columns(frame["row"], frame["line"])
    if "group" in frame.columns:
        made = made.with_columns(suffix_group=frame["group"].rank("dense") - 1)
    return made.cast({"suffix_group": pl.UInt32})
