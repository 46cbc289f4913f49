"""Bytes that reach new lines of what reads params.yaml and tables are kept and varied further.

    python -m tests.faults.guided [--minutes 5]

It prints how many files each reader was given. The first that makes one fail in any other way than
by an `InputError` is kept, and ends it with status 1. The fuzzer is atheris, for Linux on x86-64;
`test_fuzz.py`, which makes its own examples, runs everywhere.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import atheris

with redirect_stderr(io.StringIO()), atheris.instrument_imports(["pipeline", "ruamel.yaml"]):
    from pipeline.samples import schemas
    from pipeline.samples.frame import check_samples
    from pipeline.study import composition as study
    from pipeline.workflow import tables
    from tests.faults.test_fuzz import SAMPLES, TEXT, accepted

LONGEST = 20_000
"""Bytes of a file."""


def read_study(file: Path) -> None:
    """As every entry point does."""
    accepted(lambda: study.load(file))


def read_samples(file: Path) -> None:
    """As the stages that evaluate do."""
    accepted(lambda: check_samples(tables.read(file, schemas.SAMPLES), 10, 3))
    accepted(lambda: tables.provenance(file))


def seed_study(folder: Path) -> None:
    """The study in force, and each of its sections."""
    (folder / "all").write_text(TEXT)
    for number, section in enumerate(re.split(r"\n(?=\w)", TEXT)):
        (folder / f"{number}").write_text(section)


def seed_samples(folder: Path) -> None:
    """A table that is right."""
    tables.write(SAMPLES, folder / "samples.parquet", schemas.SAMPLES, {"seed": 1})


READERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "study": (seed_study, read_study),
    "samples": (seed_samples, read_samples),
}


def fuzz(reader: str, folder: Path, seconds: int) -> None:
    """Until something fails, or the time is over; it ends the process."""
    seed, read = READERS[reader]
    corpus = folder / "corpus"
    corpus.mkdir()
    seed(corpus)
    file = folder / "file"

    def given(content: bytes) -> None:
        file.write_bytes(content)
        read(file)

    options = {"max_total_time": seconds, "max_len": LONGEST, "artifact_prefix": f"{folder}/"}
    flags = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], given)
    atheris.Fuzz()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="for each reader")
    parser.add_argument("--reader", choices=READERS, help="this one, and all that the fuzzer says")
    asked = parser.parse_args()
    if asked.reader:
        folder = Path(tempfile.mkdtemp(prefix=f"guided-{asked.reader}-"))
        fuzz(asked.reader, folder, int(60 * asked.minutes))
    failed = False
    for reader in READERS:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.guided", *sys.argv[1:], "--reader", reader],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        runs = re.search(r"Done (\d+) runs in (\d+) second", done.stdout)
        if done.returncode or not runs:
            failed = True
            print(f"{reader}: FAILED\n{done.stdout[-5_000:]}", flush=True)
        else:
            print(f"{reader}: {runs[1]} files in {runs[2]} s, no crash", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
