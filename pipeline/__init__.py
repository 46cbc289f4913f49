"""Analyzing memorization in language models through attention bypass: a reproducible pipeline.

Data goes straight down this list; imports point up it, never sideways or back.

samples/      what was memorized
checkpoints/  by whom
models/       how a model is built
interventions/  what is done to it
measure/      what is measured
report/       what is shown

Around them: `params` (the study), `tables` (the schema of every table), `files` (whole files or
none), `device` (a GPU or the CPU), `dag` (Snakemake and DVC), `__main__` (one command a stage).
"""
