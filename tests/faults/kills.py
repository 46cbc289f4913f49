"""Kill an evaluation, or a whole study, at random moments; then give the same command again.

    python -m tests.faults.kills [--kills 30] [--studies 3] [--seed 0]

It prints a line for each kill: what was killed and when, how many finished shards were found
afterwards, how many of those the second run took over, and whether the tables have the bytes of an
undisturbed run. A lost shard or another byte ends it with status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

import tests.project
from tests.project import commit_all, copy_files

STUDY = "kills"
SHARD_MINUTES = 0.0007
MODELS = {"p-0.1": "kills-p", "n-0.1": "kills-n"}
FAMILIES = {"p-0.1": "pythia", "n-0.1": "gpt-neo"}
JOBS = [(stage, model) for stage in ("memorization", "benchmarks") for model in MODELS]
TABLES = ("memorization", "benchmarks")
MOST_SECONDS = 0.5
"""From a shard to the kill."""

ORPHANED_SECONDS = 10.0
"""After which nothing of a killed run may live."""

DIRECT = "command alone"
ENGINES = {"snakemake": ["snakemake", "--cores", "2"], "dvc": ["dvc", "repro"]}
VICTIMS = {DIRECT: ["command"], "dvc": ["command", "dvc", "group"]}
VICTIMS["snakemake"] = [*VICTIMS["dvc"], "snakemake"]


class Project(tests.project.Project):
    """A copy of the project with the study of this test in force."""

    @property
    def data(self) -> Path:
        return self.root / "data" / STUDY

    def shards(self, stage: str, model: str) -> int:
        """How many finished ones of a table there are."""
        return len(list((self.data / "partial" / stage / model).glob("*/*.safetensors")))

    def told(self, stage: str, model: str) -> dict[str, int]:
        """What the last run that finished says of the shards of a table."""
        cost = json.loads((self.data / "cost" / stage / f"{model}.json").read_text())
        return dict(cost["shards"])

    def tables(self) -> dict[str, bytes]:
        """Name -> content, of all tables of the evaluation."""
        files = [file for stage in TABLES for file in (self.data / stage).glob("*.parquet")]
        return {file.relative_to(self.data).as_posix(): file.read_bytes() for file in files}


def prepare(root: Path, models: Sequence[str] = tuple(MODELS)) -> Project:
    """Everything up to the interventions of these models, by DVC."""
    root.mkdir()
    copy_files(root)
    shutil.copy(Path(__file__).with_suffix(".yaml"), root / f"pipeline/conf/study/{STUDY}.yaml")
    config = root / "pipeline/conf/config.yaml"
    made = config.read_text().replace("shard_minutes: 1\n", f"shard_minutes: {SHARD_MINUTES}\n")
    config.write_text(made)
    project = Project(root)
    commit_all(root)
    project.command("python", "-m", "pipeline", "study", STUDY)
    targets = [f"interventions@{MODELS[model]}" for model in models]
    targets += [f"samples@{STUDY}-{FAMILIES[model]}" for model in models]
    project.command("dvc", "repro", *targets)
    return project


def command_of(engine: str, stage: str, model: str, *, whole: bool = False) -> list[str]:
    """What a user would type: for one table, for all that are evaluated, or for the whole study."""
    if engine == DIRECT:
        return ["python", "-m", "pipeline", "stage", f"{stage}@{MODELS[model]}"]
    if whole:
        return ENGINES[engine]
    if engine == "dvc":
        return [*ENGINES[engine], f"{stage}@{MODELS[model]}"]
    return [*ENGINES[engine], *(f"data/{STUDY}/{s}/{m}.parquet" for s, m in JOBS)]


def processes(session: int, *words: str) -> list[psutil.Process]:
    """Those of a session that live and have all these words in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        if process.info["status"] == psutil.STATUS_ZOMBIE or arguments[:1] in (["/bin/bash"], []):
            continue
        if all(any(word in each for each in arguments) for word in words):
            with suppress(ProcessLookupError):
                if os.getsid(process.pid) == session:
                    found.append(process)
    return found


def kill(running: subprocess.Popen[str], victim: str, chance: random.Random) -> None:
    """SIGKILL; waits for a victim to be there, unless all is done before."""
    if running.poll() is None and victim == "group":
        os.killpg(running.pid, signal.SIGKILL)
    if running.poll() is None and victim == "snakemake":
        running.kill()
    words = {"command": ["pipeline"], "dvc": ["bin/dvc", "repro"]}
    while victim in words and running.poll() is None:
        # the stages that are evaluated, or whichever runs
        found = [
            each
            for each in processes(running.pid, *words[victim])
            if victim != "command" or "-m" in each.info["cmdline"]
        ]
        if found:
            with suppress(psutil.NoSuchProcess):
                chance.choice(found).kill()
            return
        time.sleep(0.05)


@dataclass(frozen=True)
class Outcome:
    """Of one kill."""

    kept: int  # shards found after the kill, of all tables
    lost: int  # those of them that were computed again
    computed: int  # shards, by the second run
    identical: bool  # whether all tables have the bytes of an undisturbed run
    orphaned: float  # seconds that anything of the killed run lived on

    @property
    def good(self) -> bool:
        return self.identical and not self.lost and self.orphaned < ORPHANED_SECONDS


def trial(
    project: Project,  # in which nothing runs; it is changed
    reference: dict[str, bytes],  # tables of an undisturbed run, at least those of the command
    command: list[str],
    victim: str,  # what is killed: command, dvc, snakemake or group
    after: int,  # how many shards are finished before, of all tables
    seconds: float,  # and how long after that, or after the start
    chance: random.Random,  # chooses among several
) -> Outcome:
    """Start, kill after some seconds, start again, compare."""
    with project.start(*command) as running:
        while running.poll() is None and sum(project.shards(*job) for job in JOBS) < after:
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            running.wait(seconds)
        kill(running, victim, chance)
        killed = time.monotonic()
        # of a stage, or of one of several: the others of its run go on, as they should
        others = victim == "command" or (victim == "dvc" and command[0] == "snakemake")
        if others:
            running.wait()
        while processes(running.pid):
            if not others and time.monotonic() > killed + ORPHANED_SECONDS:
                os.killpg(running.pid, signal.SIGKILL)
            time.sleep(0.05)
        orphaned = 0.0 if others else time.monotonic() - killed
    before = {job: project.shards(*job) for job in JOBS}
    again = time.time()
    project.command(*command)
    kept = lost = computed = 0
    for stage, model in JOBS:
        cost = project.data / "cost" / stage / f"{model}.json"
        if cost.is_file() and cost.stat().st_mtime > again:
            told = project.told(stage, model)
            kept += before[stage, model]
            lost += before[stage, model] - told["reused"]
            computed += told["computed"]
    tables = project.tables()
    identical = bool(tables) and all(reference[name] == tables[name] for name in tables)
    return Outcome(kept, lost, computed, identical, orphaned)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30, help="of evaluations")
    parser.add_argument("--studies", type=int, default=3, help="kills of a whole study")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    prepared = prepare(folder / "prepared")
    undisturbed = prepared.copied(folder / "undisturbed")
    for stage, model in JOBS:
        undisturbed.command(*command_of("dvc", stage, model))
    reference = undisturbed.tables()
    shards = {job: undisturbed.told(*job)["total"] for job in JOBS}
    print(f"undisturbed, shards of each table: {list(shards.values())}\n")
    print("| engine | killed | after | kept | lost | computed | orphans s | same bytes |")
    print("|---|---|---|---:|---:|---:|---:|---|", flush=True)
    outcomes, failed = [], 0
    for number in range(asked.kills + asked.studies):
        whole = number >= asked.kills
        engine = chance.choice([each for each in VICTIMS if not (whole and each == DIRECT)])
        victim = chance.choice(VICTIMS[engine])
        job = chance.choice(JOBS)
        after = chance.randint(0, sum(shards.values()) if engine == "snakemake" else shards[job])
        seconds = chance.uniform(0, MOST_SECONDS)
        copy = prepared.copied(folder / f"{number}")
        if whole:  # from the very start
            shutil.rmtree(copy.data)
            shutil.rmtree(copy.root / ".dvc/cache")
            (copy.root / "dvc.lock").unlink()
        command = command_of(engine, *job, whole=whole)
        try:
            outcome = trial(copy, reference, command, victim, after, seconds, chance)
        except AssertionError as error:  # the second run failed; its folder stays
            print(f"| {engine} | {victim} | {after} + {seconds:.1f} s | FAILED in {copy.root}: "
                  f"{str(error).splitlines()[-1]} |", flush=True)  # fmt: skip
            failed += 1
            continue
        outcomes.append(outcome)
        print(
            f"| {'study, ' if whole else ''}{engine} | {victim} | {after} + {seconds:.1f} s "
            f"| {outcome.kept} | {outcome.lost} | {outcome.computed} | {outcome.orphaned:.1f} "
            f"| {'yes' if outcome.identical else 'NO'} |",
            flush=True,
        )
        shutil.rmtree(copy.root)
    good = sum(outcome.good for outcome in outcomes)
    print(f"\n{good} of {len(outcomes) + failed} kills survived; finished shards lost: "
          f"{sum(outcome.lost for outcome in outcomes)}")  # fmt: skip
    if not failed:
        shutil.rmtree(folder)
    sys.exit(failed > 0 or good != len(outcomes))


if __name__ == "__main__":
    main()
