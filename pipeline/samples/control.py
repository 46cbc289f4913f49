"""Control samples: windows of Pile documents that are not known to be memorized.

They are text of the same kind, most of it seen once in training. A model that completes one of them
either memorized or guessed it; the baseline counts such samples like any other.

Source: the paper compares with samples "that are not memorized" (section 4.1, Fig. 2) without
naming them; ours are from the documents that the study pins.
"""

import numpy as np
from numpy.typing import NDArray

from pipeline.checkpoints.hub import fetched_tokenizer
from pipeline.samples.documents import documents as read
from pipeline.samples.draw import number
from pipeline.workflow.errors import bad_input

LONGEST_TEXT = 20_000
"""Characters of a document that are tokenized: enough for many windows, and quick to tokenize."""


def control_windows(
    documents: tuple[str, str],
    tokenizer: tuple[str, str],
    length: int,
    n: int,
    seed: int,
    memorized: NDArray[np.integer],
) -> NDArray[np.uint32]:
    """`n` windows of text, at most one per document, at places determined by the seed.

    Args:
        documents: repository and commit of a dataset with a column ``text``.
        tokenizer: repository and commit of a model whose tokenizer cuts the text.
        length: P + S, tokens of a window.
        n: how many.
        seed: of the draws of documents and places.
        memorized: (M, P + S) samples; windows equal to one of them are skipped.

    Returns:
        (n, P + S) token ids, in the order of their documents.

    Raises:
        InputError: as for `pipeline.workflow.hub.snapshot`; no column ``text``; a tokenizer that
            transformers cannot read; or too few documents that are long enough.
    """
    texts = read(*documents)["text"].to_list()
    words_of = fetched_tokenizer(*tokenizer)
    known = {row.tobytes() for row in np.ascontiguousarray(memorized, dtype=np.uint32)}
    windows: dict[int, NDArray[np.uint32]] = {}
    order = sorted(range(len(texts)), key=lambda each: (number(seed, each), each))
    for each in order:
        if len(windows) == n:
            break
        tokens = words_of(texts[each][:LONGEST_TEXT], verbose=False)["input_ids"]
        places = len(tokens) - length + 1
        if places < 1:
            continue
        start = number(seed + 1, each) % places
        window = np.array(tokens[start : start + length], dtype=np.uint32)
        if window.tobytes() not in known:
            windows[each] = window
    if len(windows) < n:
        raise bad_input(
            f"control samples from {documents[0]}",
            f"{len(windows)} documents of {length} tokens or more, of {len(texts)}",
            f"{n}, as the study says",
            "lower n of the control samples, or name a larger dataset",
        )
    return np.stack([windows[each] for each in sorted(windows)])
