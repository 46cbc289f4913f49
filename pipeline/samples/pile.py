"""The GPT-Neo family's samples: 15,000 passages of the Pile that GPT-Neo is known to complete.

Three files of the Language Model Extraction Benchmark, joined to 200 tokens per passage (GPT-2
vocabulary). At the commit that the studies pin, the bytes are the paper's own samples. It is
unknown how often a passage occurs in the Pile, and a given GPT-Neo need not complete all of them,
so the baseline's exact match is measured like any other.

Source: github.com/ethz-privsec/lm-extraction-benchmark-data, Apache-2.0; joined, the md5 of the
(15000, 200) uint16 array in C order is 6d85d7f2b48e34e6f96541a546a699bf, as in
github.com/google-research/lm-extraction-benchmark.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pooch
from numpy.typing import NDArray

from pipeline.samples.draw import draw
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.network import NoNetworkError, no_network, unreachable

FILES = {"train_preprefix.npy": 100, "train_prefix.npy": 50, "train_suffix.npy": 50}
"""The files in the order in which they are joined -> their tokens per passage."""

BY_HAND = "name a folder that holds the three files in run.pile_folder of params.yaml"
"""What helps where their host cannot be reached."""

TRIES = 6


def fetch_passages(
    url: str, sha256: Mapping[str, str], folder: Path | None, cache: Path
) -> NDArray[np.uint16]:
    """The passages, verified.

    Args:
        url: folder that the three files are downloaded from.
        sha256: file -> its checksum.
        folder: holds the three files already; None downloads them into `cache`, where a file that
            is whole is not downloaded again.
        cache: where downloads go.

    Returns:
        (N, 200) uint16 token ids; at the pinned commit N is 15,000.

    Raises:
        NoNetworkError: the host cannot be reached.
        InputError: names every file that is missing, unreadable, not the pinned one, or not such
            an array.
    """
    downloads = pooch.create(
        cache, base_url=f"{url}/", registry=dict(sha256), retry_if_failed=TRIES - 1
    )
    here = folder is not None or all((cache / name).exists() for name in FILES)
    if not here and (why := unreachable(url)):  # pooch would try again, and for each file
        raise NoNetworkError(no_network(why, url, remedy=BY_HAND))
    remedy = (
        "check the folder (run.pile_folder in params.yaml), or null to download"
        if folder
        else "check the network, or fetch the files elsewhere and name their folder in "
        "run.pile_folder of params.yaml"
    )
    parts, problems = [], []
    for name, length in FILES.items():
        try:
            path = folder / name if folder else Path(downloads.fetch(name, downloader=_download))
            parts.append(_read(path, sha256[name], length))
        except (OSError, ValueError, EOFError) as error:  # requests' errors are OSErrors
            expected = f"{length} tokens a passage, in the file with sha256 {sha256[name]}"
            problem = f"{folder or url}/{name}", shorten(str(error), 300), expected, remedy
            problems.append(Problem(*problem))
    if not problems and len({len(part) for part in parts}) > 1:
        got = "passages: " + ", ".join(str(len(part)) for part in parts)
        remedy = "pin three files that belong together"
        problems.append(Problem(f"the files of {folder or url}", got, "as many in each", remedy))
    if problems:
        raise InputError(*problems)
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def memorized(passages: NDArray[np.uint16], n: int, seed: int) -> NDArray[np.uint16]:
    """`n` of the passages (N, 200), in their order; all, where n is N.

    Raises:
        InputError: there are fewer.
    """
    if n > (most := len(passages)):
        raise bad_input("n_memorized", str(n), f"at most {most}", "lower it: there are no more")
    return passages[draw(range(len(passages)), n, seed)]


def _download(url: str, output_file: object, downloads: pooch.Pooch) -> None:
    pooch.HTTPDownloader(progressbar=True, timeout=60)(url, output_file, downloads)


def _read(path: Path, expected: str, length: int) -> NDArray[np.uint16]:
    """The array in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is another file, or another array.
    """
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != expected:
        raise ValueError(f"sha256 {got}")
    part: NDArray[np.uint16] = np.load(path, allow_pickle=False)
    if part.ndim != 2 or part.shape[1] != length or part.dtype != np.uint16:
        raise ValueError(f"an array of {part.dtype}, {part.shape}")
    return part
