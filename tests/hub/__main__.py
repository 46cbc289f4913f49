"""python -m tests.hub [--home DIR] COMMAND …: run a command whose hub is this one.

COMMAND sees `HF_ENDPOINT` and the rest in its environment, and the folder of the GPT-Neo samples in
`GPT_NEO_SAMPLES_URL`. What it asked for is counted on stderr.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.hub.population import GPT_NEO_SAMPLES, populate
from tests.hub.server import Hub, Request


def _line(request: Request) -> str:
    path = re.sub("[0-9a-f]{40}", lambda commit: commit[0][:8], request.path)
    part = " (a part)" if request.range else ""
    return f"{request.status or 'none':>4} {request.method:4} {path}{part}"


def main(arguments: list[str]) -> int:
    """Run it.

    Args:
        arguments: of the command line.

    Returns:
        The command's exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.add_argument("--home", type=Path, help="HF_HOME, to be kept; default: a temporary one")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND …")
    parsed = parser.parse_args(arguments)
    if not parsed.command:
        parser.error("a COMMAND is needed")
    with tempfile.TemporaryDirectory() as temporary, Hub() as hub:
        populate(hub)
        home = parsed.home.resolve() if parsed.home else Path(temporary)
        samples = {"GPT_NEO_SAMPLES_URL": hub.url + GPT_NEO_SAMPLES}
        environment = {**os.environ, **hub.environment(home), **samples, "HF_HUB_DISABLE_XET": "1"}
        status = subprocess.run(parsed.command, env=environment).returncode
        tally = Counter(map(_line, hub.log))
    for line, count in sorted(tally.items(), key=lambda item: item[0][5:]):
        print(f"{count:4} × {line}", file=sys.stderr)
    print(f"{sum(tally.values()):4} requests", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
