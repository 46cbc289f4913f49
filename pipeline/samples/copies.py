"""Counts how often passages occur in a user's corpus, word for word and nearly."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from datasketch import MinHash, MinHashLSH
from numpy.typing import NDArray
from pydivsufsort import divsufsort, sa_search

ALIKE = 0.5
"""Least Jaccard similarity of the word trigrams of a passage and a near copy of it.

One other word within 40 gives 35/41 = 0.85, three apart 29/47 = 0.62.
"""

_OFFSETS = 4  # passages of the corpus begin at every quarter of a passage's length


def counted(texts: Mapping[str, str], corpus: Sequence[str], windows: pl.DataFrame) -> pl.DataFrame:
    """The windows of some documents with the copies of their suffixes in a corpus.

    Args:
        texts: name -> text of each document.
        corpus: texts.
        windows: document · first_character · end_character · others, of suffixes.

    Returns:
        The same rows, with copies i64 · near_copies i64; a copy counts as a near copy, too.
    """
    places = windows.select("document", "first_character", "end_character").iter_rows()
    passages = [texts[document][first:end] for document, first, end in places]
    exact = exact_copies(corpus, passages)
    near = np.maximum(near_copies(corpus, passages), exact)
    return windows.with_columns(copies=pl.Series(exact), near_copies=pl.Series(near))


def exact_copies(corpus: Sequence[str], passages: Sequence[str]) -> NDArray[np.int64]:
    """(N,) how often each of N passages occurs in a corpus; overlapping copies count apart.

    Line ends of Windows equal those of others. The suffix array takes five bytes for each byte of
    the corpus.
    """
    text = b"\xff".join(map(_bytes, corpus))  # a byte that UTF-8 never has
    if not text:
        return np.zeros(len(passages), np.int64)
    array = divsufsort(text)
    found = (sa_search(text, array, sought)[0] if sought else 0 for sought in map(_bytes, passages))
    return np.array(list(found), np.int64)


def near_copies(corpus: Sequence[str], passages: Sequence[str]) -> NDArray[np.int64]:
    """(N,) how often each of N passages occurs nearly: `ALIKE` by trigrams of words, without case.

    The corpus is cut into stretches of as many words as a passage has in the median. MinHash
    proposes those that are alike, their exact similarity decides, and stretches that overlap count
    once. MinHash may overlook a copy whose similarity is close to `ALIKE`. A passage of fewer than
    three words has none.

    Source: Lee et al. (2022), arXiv 2107.06499, which finds near-duplicates by MinHash.
    """
    wanted = [_trigrams(_words(each)) for each in passages]
    size = int(np.median([len(each) for each in wanted if each] or [1])) + 2
    step = max(1, size // _OFFSETS)
    places = [
        (number, at, _trigrams(words[at : at + size]))
        for number, words in enumerate(map(_words, corpus))
        for at in range(0, max(1, len(words) - size + step), step)
    ]
    index = MinHashLSH(threshold=ALIKE)
    for key, sketch in enumerate(MinHash.bulk([trigrams for _, _, trigrams in places])):
        index.insert(key, sketch)
    found = np.zeros(len(passages), np.int64)
    for passage, (mine, sketch) in enumerate(zip(wanted, MinHash.bulk(wanted), strict=True)):
        ends = defaultdict[int, int](int)
        for number, at, theirs in (places[key] for key in sorted(index.query(sketch))):
            shared = len(mine & theirs)
            alike = mine and shared >= ALIKE * (len(mine) + len(theirs) - shared)
            if alike and at >= ends[number]:
                found[passage] += 1
                ends[number] = at + size
    return found


def _bytes(text: str) -> bytes:
    return text.replace("\r", "").encode()


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _trigrams(words: Sequence[str]) -> set[bytes]:
    return {" ".join(words[at : at + 3]).encode() for at in range(len(words) - 2)}
