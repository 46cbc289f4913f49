"""A whole study of stubs from nothing, eight jobs at once, again and again: does a lock ever fail?

    python -m tests.faults.rounds [--rounds 50]

It prints how many rounds ran every stage just once; any other ends it with status 1.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.dag.conftest import Project, stub_project
from tests.dag.test_agreement import ALL


def from_nothing(project: Project) -> str:
    """Run everything; what went wrong, or nothing."""
    for folder in ("data", "reports", ".dvc/cache", ".snakemake"):
        shutil.rmtree(project.root / folder, ignore_errors=True)
    (project.root / "dvc.lock").unlink(missing_ok=True)
    done = project.snakemake(check=False)
    ran = project.ran()
    if done.returncode:
        return done.stdout + done.stderr
    return "" if ran == Counter(ALL) else f"ran: {ran}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    asked = parser.parse_args()
    started, wrong = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        project = stub_project(Path(folder))
        for number in range(asked.rounds):
            if said := from_nothing(project):
                wrong.append(f"round {number}:\n{said}")
                print(wrong[-1], flush=True)
    seconds = (time.monotonic() - started) / asked.rounds
    print(
        f"{asked.rounds - len(wrong)} of {asked.rounds} rounds of {len(ALL)} stages, eight jobs at "
        f"once, of {seconds:.0f} s: every stage ran just once"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
