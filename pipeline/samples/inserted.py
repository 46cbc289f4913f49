"""Samples from texts that were inserted into the training data of some models, and not of others.

How often each was inserted is known, so a difference between two such models is due to the
insertions alone.

Source: Hubble, arXiv 2510.19811; its datasets have the inserted texts as the split ``train`` and
texts that were held out as ``test``, all with the columns ``text`` and ``duplicates``. The samples
here are the first tokens of each text, of the lengths that the study asks.
"""

import numpy as np
import polars as pl
import polars.selectors as cs

from pipeline.checkpoints.hub import fetched_tokenizer
from pipeline.samples.documents import TEXT, documents
from pipeline.samples.frame import samples_frame, split_of
from pipeline.workflow.errors import bad_input

COLUMNS = {**TEXT, "duplicates": (cs.integer(), "whole numbers")}


def samples(
    texts: tuple[str, str],
    tokenizer: tuple[str, str],
    prefix_length: int,
    suffix_length: int,
    memorized_copies: int,
) -> pl.DataFrame:
    """The first P + S tokens of each text that has as many, in its order, as `SAMPLES`.

    Args:
        texts: repository and commit of a dataset with the columns ``text`` and ``duplicates``.
        tokenizer: repository and commit of a model whose tokenizer cuts the texts.
        prefix_length: P, tokens.
        suffix_length: S, tokens.
        memorized_copies: see `frame.split_of`.

    Raises:
        InputError: as for `pipeline.workflow.hub.snapshot`; a split without the columns; a number
            of duplicates that is none; or no long text that was inserted often enough, or none
            that was never inserted.
    """
    rows = documents(*texts, columns=COLUMNS)
    if len(wrong := rows.filter(~(pl.col("duplicates") >= 0).fill_null(False))):
        raise bad_input(
            f"{texts[0]} at {texts[1]}: duplicates",
            f"{wrong['duplicates'][0]} in the first of {len(wrong)} rows",
            "whole numbers from 0",
            "name a dataset of inserted texts",
        )
    words_of = fetched_tokenizer(*tokenizer)
    length = prefix_length + suffix_length
    tokens, copies = [], []
    for text, duplicates in rows.rows():
        ids = words_of(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= length:
            tokens.append(ids[:length])
            copies.append(duplicates)
    splits = [split_of(each, memorized_copies) for each in copies]
    if missing := [name for name in ("memorized", "control") if name not in splits]:
        raise bad_input(
            f"samples from {texts[0]}",
            f"no {' and no '.join(missing)} sample among {len(tokens)} texts of {length} "
            f"tokens or more, of {len(rows)}",
            f"texts inserted {memorized_copies} times or more, and texts never inserted",
            "shorten prefix or suffix, or lower memorized_copies",
        )
    print(f"{len(tokens)} of {len(rows)} texts have {length} tokens or more", flush=True)
    return samples_frame(np.array(tokens), prefix_length, splits, copies)
