"""The whole study in the order in which it runs, one rule a stage.

dvc.yaml declares what each stage reads, writes and runs; DVC decides which are stale; Snakemake
runs them side by side:

    snakemake --cores 8 --resources gpu=2
    snakemake --cores 8 --config study=NAME      another study of pipeline/conf/study/
"""

import errno
import os
import re
import shutil
import signal
import sys

running = signal.signal(
    signal.SIGINT, lambda *_: sys.exit("stopped before any stage was started")
)

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

from pipeline.workflow import device
from pipeline.workflow.accept import accept
from pipeline.workflow.dag import Dag
from pipeline.workflow.dependencies import require_versions
from pipeline.workflow.errors import InputError, disk_problem
from pipeline.plan.downloads import require_downloads
from pipeline.workflow.files import PARAMS
from pipeline.workflow.locks import held, take_turn
from pipeline.workflow.progress import disable_monitor
from pipeline.plan.scheduling import Needs
from pipeline.study.composition import load, switch

min_version("9.27")
disable_monitor()

DRY_RUN = any(
    re.fullmatch(r"--dry-?run|-[A-Za-z]*n[A-Za-z]*", word) for word in sys.argv
)

try:
    chosen = {group: str(option) for group, option in config.items()}
    if not workflow.is_main_process:
        study = load()
    elif DRY_RUN:
        study = switch(chosen, dry_run=True)
    else:
        take_turn()
        with held(PARAMS):
            study = switch(chosen, dry_run=False)
    dvc = Dag(decide=workflow.is_main_process)
    if workflow.is_main_process:
        require_versions()
        if not DRY_RUN:
            accept(dvc)
        dvc.write_marks()
except InputError as error:
    raise WorkflowError(str(error)) from None
signal.signal(signal.SIGINT, running)


onstart:
    try:
        require_downloads(
            study,
            [
                dvc.stages[job.params.stage]
                for job in workflow.dag.needrun_jobs()
                if job.params.get("stage")
            ],
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None


onerror:
    free = shutil.disk_usage(".").free
    if free < 2**20:  # DVC itself then says "No possible cache link types"
        print(
            disk_problem(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), ".")),
            file=sys.stderr,
        )


REPRO = "dvc --wait-for-lock repro --single-item {params.stage:q} >{log:q} 2>&1"
# a machine without a GPU has none to share out, so its rules compete for cores alone; where the
# GPUs are on other machines than this one, profiles/slurm asks for them
GPU = 1 if device.visible() else 0
needs = Needs(study)


wildcard_constraints:
    family="|".join(re.escape(family.name) for family in study.families.values()),
    model="|".join(re.escape(model.name) for model in study.models.values()),
    part=r"\d+-of-\d+",
    experiment="|".join(each.name for each in study.theory.values()) or "none",


# `check` and `memorization` are written out; every other rule is one of the two with its own files.
# `memorization` is the pattern of what evaluates a model: more threads, and a GPU where there is one.


rule all:
    input:
        checked=study.data / "study.json",
        report=study.reports / "index.html",


rule check:
    """Check params.yaml as a whole, before any other stage."""
    input:
        unpack(dvc.rule("check").input),
    output:
        **dvc.rule("check").output,
    log:
        dvc.rule("check").log,
    benchmark:
        dvc.rule("check").benchmark
    threads: 1
    resources:
        mem_mb=needs.mem_mb,
        runtime=needs.runtime,
    params:
        stage=dvc.rule("check").stage,
    shell:
        REPRO


use rule check as corpus with:
    """Generate what is to be memorized, and the benchmark tasks."""
    input:
        unpack(dvc.rule("corpus").input),
    output:
        **dvc.rule("corpus").output,
    log:
        dvc.rule("corpus").log,
    benchmark:
        dvc.rule("corpus").benchmark
    params:
        stage=dvc.rule("corpus").stage,


use rule check as samples with:
    """Make the samples of one family, each a prefix and a suffix."""
    input:
        unpack(dvc.rule("samples").input),
    output:
        **dvc.rule("samples").output,
    log:
        dvc.rule("samples").log,
    benchmark:
        dvc.rule("samples").benchmark
    params:
        stage=dvc.rule("samples").stage,


use rule check as datasets with:
    """Fetch the datasets of lm-eval's own tasks."""
    input:
        unpack(dvc.rule("datasets").input),
    output:
        **dvc.rule("datasets").output,
    log:
        dvc.rule("datasets").log,
    benchmark:
        dvc.rule("datasets").benchmark
    params:
        stage=dvc.rule("datasets").stage,


use rule check as checkpoint with:
    """Get the weights of one model, with a manifest of what they are."""
    input:
        unpack(dvc.rule("checkpoint").input),
    output:
        **dvc.rule("checkpoint").output,
    log:
        dvc.rule("checkpoint").log,
    benchmark:
        dvc.rule("checkpoint").benchmark
    # the longest jobs first, so that none is left to run alone at the end
    priority: 2
    params:
        stage=dvc.rule("checkpoint").stage,


use rule check as interventions with:
    """List the interventions of one model, and what each stands for."""
    input:
        unpack(dvc.rule("interventions").input),
    output:
        **dvc.rule("interventions").output,
    log:
        dvc.rule("interventions").log,
    benchmark:
        dvc.rule("interventions").benchmark
    params:
        stage=dvc.rule("interventions").stage,


rule memorization:
    """Complete every sample under every intervention."""
    input:
        unpack(dvc.rule("memorization").input),
    output:
        **dvc.rule("memorization").output,
    log:
        dvc.rule("memorization").log,
    benchmark:
        dvc.rule("memorization").benchmark
    threads: study.run.threads
    resources:
        mem_mb=needs.mem_mb,
        runtime=needs.runtime,
        gpu=GPU,
    params:
        stage=dvc.rule("memorization").stage,
    shell:
        REPRO


use rule memorization as memorization_part with:
    """Complete the samples of one part under every intervention."""
    input:
        unpack(dvc.rule("memorization_part").input),
    output:
        **dvc.rule("memorization_part").output,
    log:
        dvc.rule("memorization_part").log,
    benchmark:
        dvc.rule("memorization_part").benchmark
    params:
        stage=dvc.rule("memorization_part").stage,


use rule memorization as tokens with:
    """Measure some samples token by token, and how far each intervention moves the stream."""
    input:
        unpack(dvc.rule("tokens").input),
    output:
        **dvc.rule("tokens").output,
    log:
        dvc.rule("tokens").log,
    benchmark:
        dvc.rule("tokens").benchmark
    priority: -1
    params:
        stage=dvc.rule("tokens").stage,


use rule memorization as benchmarks with:
    """Evaluate every benchmark task under every intervention."""
    input:
        unpack(dvc.rule("benchmarks").input),
    output:
        **dvc.rule("benchmarks").output,
    log:
        dvc.rule("benchmarks").log,
    benchmark:
        dvc.rule("benchmarks").benchmark
    priority: 1
    params:
        stage=dvc.rule("benchmarks").stage,


use rule memorization as benchmarks_part with:
    """Evaluate the documents of one part under every intervention."""
    input:
        unpack(dvc.rule("benchmarks_part").input),
    output:
        **dvc.rule("benchmarks_part").output,
    log:
        dvc.rule("benchmarks_part").log,
    benchmark:
        dvc.rule("benchmarks_part").benchmark
    params:
        stage=dvc.rule("benchmarks_part").stage,


use rule memorization as generations with:
    """Let the model write after some prompts, under some of the interventions."""
    input:
        unpack(dvc.rule("generations").input),
    output:
        **dvc.rule("generations").output,
    log:
        dvc.rule("generations").log,
    benchmark:
        dvc.rule("generations").benchmark
    params:
        stage=dvc.rule("generations").stage,


use rule memorization as divergence with:
    """Measure how far each bypass moves the last token, against the theorems' bounds."""
    input:
        unpack(dvc.rule("divergence").input),
    output:
        **dvc.rule("divergence").output,
    log:
        dvc.rule("divergence").log,
    benchmark:
        dvc.rule("divergence").benchmark
    params:
        stage=dvc.rule("divergence").stage,


use rule memorization as attribution with:
    """Multiply what each block writes with the gradient of the loss by it."""
    input:
        unpack(dvc.rule("attribution").input),
    output:
        **dvc.rule("attribution").output,
    log:
        dvc.rule("attribution").log,
    benchmark:
        dvc.rule("attribution").benchmark
    params:
        stage=dvc.rule("attribution").stage,


use rule check as theory with:
    """Run one experiment on attention-only transformers, which takes no model."""
    input:
        unpack(dvc.rule("theory").input),
    output:
        **dvc.rule("theory").output,
    log:
        dvc.rule("theory").log,
    benchmark:
        dvc.rule("theory").benchmark
    params:
        stage=dvc.rule("theory").stage,


use rule check as check_results with:
    """Check that the tables of every model are whole and possible, before anything is made of them."""
    input:
        unpack(dvc.rule("check_results").input),
    output:
        **dvc.rule("check_results").output,
    log:
        dvc.rule("check_results").log,
    benchmark:
        dvc.rule("check_results").benchmark
    params:
        stage=dvc.rule("check_results").stage,


use rule check as localization with:
    """Score every block where it is known which one learned the samples."""
    input:
        unpack(dvc.rule("localization").input),
    output:
        **dvc.rule("localization").output,
    log:
        dvc.rule("localization").log,
    benchmark:
        dvc.rule("localization").benchmark
    params:
        stage=dvc.rule("localization").stage,


use rule check as aggregate with:
    """Put every number that the report shows, with its interval, into one table."""
    input:
        unpack(dvc.rule("aggregate").input),
    output:
        **dvc.rule("aggregate").output,
    log:
        dvc.rule("aggregate").log,
    benchmark:
        dvc.rule("aggregate").benchmark
    params:
        stage=dvc.rule("aggregate").stage,


use rule check as figures with:
    """Draw every figure, each as SVG, PNG and PDF with its data as CSV."""
    input:
        unpack(dvc.rule("figures").input),
    output:
        **dvc.rule("figures").output,
    log:
        dvc.rule("figures").log,
    benchmark:
        dvc.rule("figures").benchmark
    params:
        stage=dvc.rule("figures").stage,


use rule check as report with:
    """Write the page that tells what was done, what came out and how sure it is."""
    input:
        unpack(dvc.rule("report").input),
    output:
        **dvc.rule("report").output,
    log:
        dvc.rule("report").log,
    benchmark:
        dvc.rule("report").benchmark
    params:
        stage=dvc.rule("report").stage,
