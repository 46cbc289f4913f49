"""The whole study in the order in which it runs, one rule a stage.

dvc.yaml declares what each stage reads, writes and runs; DVC decides which are stale; Snakemake
runs them side by side:

    snakemake --cores 8 --resources gpu=2
    snakemake --cores 8 --config study=NAME      another study of pipeline/conf/study/

`snakemake --list-rules` lists the rules with what each does: corpus, samples, checkpoint,
interventions, memorization, … report. They are made below, all alike, from dvc.yaml and from the
registry of stages (pipeline/stages/registry.py), which knows the loop and the resources of each.
The check of params.yaml and the digests of the code come first, before Snakemake plans anything.
"""

import errno
import os
import re
import signal
import sys

running = signal.signal(
    signal.SIGINT, lambda *_: sys.exit("stopped before any stage was started")
)

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from pipeline.plan.downloads import require_downloads
from pipeline.plan.scheduling import Needs
from pipeline.stages.registry import STAGES
from pipeline.study.composition import load, switch
from pipeline.workflow import board, device
from pipeline.workflow.dag import FIRST, Dag
from pipeline.workflow.errors import InputError, disk_problem
from pipeline.workflow.files import PARAMS, free_on_disk
from pipeline.workflow.locks import held, take_turn
from pipeline.workflow.progress import disable_monitor
from pipeline.workflow.provenance import require_versions
from pipeline.workflow.rules import RuleParts, copy_vega, only_looks, write_marks

min_version("9.27")


# used by `--sdm apptainer` alone; the Dockerfile says how it is built
container: "bypass-memorization.sif"


disable_monitor()
shown = None

try:
    chosen = {group: str(option) for group, option in config.items()}
    looks = workflow.is_main_process and only_looks()
    if not workflow.is_main_process:
        study = load()
    elif looks:
        study = switch(chosen, dry_run=True)
    else:
        take_turn()
        with held(PARAMS):
            study = switch(chosen, dry_run=False)
    dag = Dag(decide=workflow.is_main_process)
    if workflow.is_main_process:
        require_versions()
        if not looks:
            shown = board.take_over(workflow.logger_manager.logger)
            dag.run_first()
            copy_vega()
        write_marks(dag)
except InputError as error:
    raise WorkflowError(str(error)) from None
signal.signal(signal.SIGINT, running)


onstart:
    jobs = workflow.dag.needrun_jobs()
    todo = {job.jobid: job.params.stage for job in jobs if job.params.get("stage")}
    try:
        require_downloads(study, [dag.stages[address] for address in todo.values()])
    except InputError as error:
        raise WorkflowError(str(error)) from None
    if shown:
        shown.start(todo)


onsuccess:
    if shown:
        shown.stop()


onerror:
    if shown:
        shown.stop()
    # without room, DVC itself says "No possible cache link types"
    if free_on_disk(".") < 2**20:
        print(
            disk_problem(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), ".")),
            file=sys.stderr,
        )


# a machine without a GPU has none to share out, so its rules compete for cores alone; where the
# GPUs are on other machines than this one, profiles/slurm asks for them
GPU = 1 if device.visible() else 0
needs = Needs(study, STAGES)


wildcard_constraints:
    name="|".join(map(re.escape, study.names)),
    part=r"\d+-of-\d+",


rule all:
    input:
        study.reports / "index.html",
        [study.reports / "mitigations.html"] if study.mitigations else [],
        [study.reports / "document"] if study.windows else [],
    localrule: True


for group in [name for name in dag.declared if name not in FIRST]:
    stage = STAGES[group.removesuffix("_part")]
    declared = RuleParts(dag, study.study, group)

    rule:
        name:
            group
        input:
            declared.input,
        output:
            declared.output,
        log:
            declared.log,
        benchmark:
            declared.benchmark
        priority: stage.priority
        localrule: stage.local
        threads: study.run.threads if stage.evaluates else 1
        resources:
            mem_mb=needs.mem_mb,
            runtime=needs.runtime,
            gpu=GPU if stage.evaluates else 0,
        params:
            stage=declared.address,
        shell:
            "dvc --wait-for-lock repro --single-item {params.stage:q} >{log:q} 2>&1"

    workflow.get_rule(group).docstring = declared.docstring
