# make run      the study in force, or `make run STUDY=NAME`, through to its report
# make test     the tests
# make check    style, types, workflow
# make bench    how much faster the engine is than plain loops, side by side
# Each sets up what it needs: a virtual environment in .venv with the tested set of packages.

PYTHON ?= python3
STUDY  ?=
CORES  ?= all
PYTEST_FLAGS ?=
# for a CPU-only torch on Linux: make run PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

INSTALLED := .venv/.installed

.PHONY: run test check bench

run: $(INSTALLED)
	snakemake --cores $(CORES) $(if $(STUDY),--config study=$(STUDY))
	@python -m pipeline where

test: $(INSTALLED)
	OMP_NUM_THREADS=1 pytest --numprocesses auto --dist worksteal $(PYTEST_FLAGS)

bench: $(INSTALLED)
	OMP_NUM_THREADS=1 python -m tests.performance.bench reports/speed.md

check: $(INSTALLED)
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check Snakefile
	python tests/lint_workflow.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with PYTHON=…")'
	$(PYTHON) -m venv .venv
	pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
