"""Draws some of many ids by a seeded hash, independently of their order."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def draw(ids: Sequence[int] | NDArray[np.integer], n: int, seed: int) -> NDArray[np.int64]:
    """The `n` of `ids` that a seeded hash ranks first, ascending; all, where they are fewer.

    The ids are distinct. One keeps its rank when others are added or removed.
    """
    known = np.asarray(ids, dtype=np.int64)
    ranks = np.array([number(seed, each) for each in known.tolist()], dtype=np.uint64)
    return np.sort(known[np.lexsort((known, ranks))[:n]])


def number(seed: int, each: int) -> int:
    """A number below 2^64 that depends on `seed` and `each` alone, evenly spread."""
    digest = hashlib.blake2b(f"{seed}:{each}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
