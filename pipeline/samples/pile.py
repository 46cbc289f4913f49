"""The GPT-Neo family's samples: 15,000 passages of the Pile that GPT-Neo is known to complete.

Three files of the Language Model Extraction Benchmark, joined to 200 tokens a passage (GPT-2
vocabulary). The same bytes are the paper's own samples. Nothing says how often a passage occurs in
the Pile, so `copies` is null; nothing guarantees that a given GPT-Neo completes all of them, so the
baseline's exact match is measured like any other.

Source: github.com/ethz-privsec/lm-extraction-benchmark-data, Apache-2.0, at the pinned commit; the
checksum of the joined array is that of github.com/google-research/lm-extraction-benchmark.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import polars as pl
import pooch
from numpy.typing import NDArray

from pipeline.errors import InputError, Problem
from pipeline.samples.frame import samples_frame

COMMIT = "5a3286942710076d56024cfdb296f7c585cd2b7c"
URL = (
    f"https://raw.githubusercontent.com/ethz-privsec/lm-extraction-benchmark-data/{COMMIT}/datasets"
)
SHA256 = {
    "train_preprefix.npy": "a9c3ed1dc735d4b93183b47a3c08e9613d1d36da0a7f26790e19a8f87e10a70d",
    "train_prefix.npy": "a2f69009df399132937f028e73b4a37783ee27704a01ca74e3f9e6ece0807aa9",
    "train_suffix.npy": "5934e2007eeb42efd057646da5094716aa0bb1cac386f898b075a58299162c39",
}
"""The files in the order in which they are joined: 100, 50 and 50 tokens a passage."""

JOINED_MD5 = "6d85d7f2b48e34e6f96541a546a699bf"
"""Of the joined (15000, 200) uint16 array in C order."""

PREFIX_LENGTH = 150
SUFFIX_LENGTH = 50


def fetch(folder: Path | None, cache: Path) -> NDArray[np.uint16]:
    """The 15,000 passages, verified.

    Args:
        folder: holds the three files already; None downloads them into `cache`, where a file that
            is whole is not downloaded again.
        cache: where downloads go.

    Returns:
        (15000, 200) uint16 token ids.

    Raises:
        InputError: a file is missing, unreadable or not the pinned one; every one is named.
    """
    paths, problems = [], []
    for name, sha256 in SHA256.items():
        try:
            path = _download(name, sha256, cache) if folder is None else folder / name
            problems += _verify(path, sha256)
            paths.append(path)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            problems.append(
                Problem(
                    f"{folder or URL}/{name}",
                    str(error),
                    f"the file with sha256 {sha256}",
                    "check the folder (run.pile_folder in params.yaml), or null to download"
                    if folder
                    else "check the network, or fetch the files elsewhere and name their folder "
                    "in run.pile_folder of params.yaml",
                )
            )
    if problems:
        raise InputError(*problems)
    joined = np.concatenate([np.load(path, allow_pickle=False) for path in paths], axis=1)
    joined = np.ascontiguousarray(joined)
    md5 = hashlib.md5(joined.tobytes(), usedforsecurity=False).hexdigest()
    if md5 != JOINED_MD5:
        raise InputError(
            Problem("the joined samples", f"md5 {md5}", JOINED_MD5, "report this as a bug")
        )
    return joined


def samples(
    passages: NDArray[np.uint16],
    prefix_length: int = PREFIX_LENGTH,
    suffix_length: int = SUFFIX_LENGTH,
) -> pl.DataFrame:
    """The samples table: the last P of the 150 prefix tokens, the first S of the 50 after them.

    Args:
        passages: (N, 200) token ids, as `fetch` returns them.
        prefix_length: P, 1 to 150 tokens; the paper uses all.
        suffix_length: S, 1 to 50 tokens; the paper uses all.

    Raises:
        InputError: P or S is out of range.
    """
    problems = [
        Problem(what, str(got), f"1 to {most}", "shorten it: the passages hold no more")
        for what, got, most in (
            ("prefix_length of Pile samples", prefix_length, PREFIX_LENGTH),
            ("suffix_length of Pile samples", suffix_length, SUFFIX_LENGTH),
        )
        if not 1 <= got <= most
    ]
    if problems:
        raise InputError(*problems)
    window = passages[:, PREFIX_LENGTH - prefix_length : PREFIX_LENGTH + suffix_length]
    count = len(window)
    return samples_frame(window, prefix_length, ["memorized"] * count, [None] * count)


def _download(name: str, sha256: str, cache: Path) -> Path:
    downloader = pooch.HTTPDownloader(progressbar=True, timeout=60)
    return Path(
        pooch.retrieve(
            f"{URL}/{name}",
            known_hash=f"sha256:{sha256}",
            fname=name,
            path=cache,
            downloader=downloader,
        )
    )


def _verify(path: Path, expected: str) -> list[Problem]:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got == expected:
        return []
    return [
        Problem(
            str(path),
            f"sha256 {got}",
            f"sha256 {expected}",
            f"replace the file by the one at {URL}/{path.name}",
        )
    ]
