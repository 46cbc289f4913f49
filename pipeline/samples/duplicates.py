"""Groups samples with nearly the same suffix, since they are not independent evidence."""

import numpy as np
from datasketch import MinHash, MinHashLSH
from numpy.typing import NDArray
from scipy.cluster.hierarchy import DisjointSet

ALIKE = 0.7
"""Least Jaccard similarity of the token pairs of two suffixes that are near-duplicates.

One other token inside a suffix of 16 gives 13/17 = 0.76, four in a suffix of 50 give 41/57 = 0.72.
"""

_PERMUTATIONS = 128
_SEED = 1  # of the permutations: the same suffixes have the same groups on every machine


def suffix_groups(suffixes: NDArray[np.integer]) -> NDArray[np.intp]:
    """Number the clusters of near-duplicates: samples with the same number belong together.

    MinHash proposes pairs, their exact similarity decides, and clusters are chains of such pairs
    (single linkage). Equal suffixes always share a group. MinHash may overlook a pair whose
    similarity is close to `ALIKE`. 15,000 suffixes of 50 tokens take about ten seconds.

    Args:
        suffixes: (N, S) token ids.

    Returns:
        (N,) numbers from 0, in the order of the first sample of each group.

    Source: Lee et al. (2022), Deduplicating Training Data Makes Language Models Better,
    arXiv 2107.06499, which looks for near-duplicates by MinHash too.
    """
    distinct, which = np.unique(suffixes, axis=0, return_inverse=True)
    pairs = [_token_pairs(suffix) for suffix in distinct]
    index = MinHashLSH(threshold=ALIKE, num_perm=_PERMUTATIONS)
    clusters = DisjointSet(range(len(distinct)))
    for i, sketch in enumerate(MinHash.generator(pairs, num_perm=_PERMUTATIONS, seed=_SEED)):
        for other in index.query(sketch):
            if len(pairs[i] & pairs[other]) / len(pairs[i] | pairs[other]) >= ALIKE:
                clusters.merge(i, other)
        index.insert(i, sketch)
    roots = np.array([clusters[i] for i in range(len(distinct))], dtype=np.intp)[which.ravel()]
    _, first, inverse = np.unique(roots, return_index=True, return_inverse=True)
    numbers: NDArray[np.intp] = np.argsort(np.argsort(first))[inverse]
    return numbers


def _token_pairs(suffix: NDArray[np.integer]) -> set[bytes]:
    """The pairs of neighbouring tokens; of a suffix of one token, that token."""
    width = min(2, len(suffix))
    windows = np.lib.stride_tricks.sliding_window_view(suffix.astype(np.uint32), width)
    return {window.tobytes() for window in windows}
