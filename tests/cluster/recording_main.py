"""Stands in for pipeline/__main__.py on the test cluster, before the stub of tests/dag.

Appends to jobs.jsonl what SLURM gave the job; nothing of a stage that runs outside of one. A file
hungry/ADDRESS makes that stage take a tenth more memory than its first attempt was given, in every
attempt.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

GPU_SECONDS = 2  # after the first two have met

STUB = "pipeline/stub_main.py"

if "SLURM_JOB_ID" not in os.environ:
    runpy.run_path(STUB, run_name="__main__")
    sys.exit()

address = os.environ["DVC_STAGE"]
job = os.environ["SLURM_JOB_ID"]
device = os.environ.get("CUDA_VISIBLE_DEVICES")
show = ["scontrol", "show", "job", "--oneliner", job]
shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
granted = dict(field.split("=", 1) for field in shown.split() if "=" in field)
number, unit = re.fullmatch(r"(\d+)([MG])", granted["MinMemoryNode"]).groups()
memory = int(number) * {"M": 1, "G": 1024}[unit]
told = {"stage": address, "number": job, "memory": memory, "device": device}
told["limit"] = granted["TimeLimit"]


def note(event: str) -> None:
    with Path("jobs.jsonl").open("a") as jobs:
        jobs.write(json.dumps([event, time.time(), told]) + "\n")


def holders() -> int:
    """How many jobs with a GPU have begun."""
    notes = [json.loads(line) for line in Path("jobs.jsonl").read_text().splitlines()]
    return sum(event == "began" and told["device"] is not None for event, _, told in notes)


note("began")
hungry = Path("hungry", address)
if hungry.exists():
    hungry.write_text(hungry.read_text() or str(int(1.1 * memory)))
    held = b"x" * (int(hungry.read_text()) << 20)
    # SLURM looks once a second, and kills what has more than it was given
    time.sleep(5 if int(hungry.read_text()) < memory else 120)
if device is not None:
    deadline = time.monotonic() + 60
    while holders() < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(GPU_SECONDS)
runpy.run_path(STUB, run_name="__main__")
note("ended")
