# make run      the study in force, or `make run STUDY=NAME`, through to its report
# make test     the essential tests, in minutes: units, oracles, a page in a browser
# make test-all all tests, as CI runs them
# make test-cluster   those with a real SLURM and a real ssh server, which it installs (Debian, root)
# make faults   kills, fuzzing, memory, for hours, with their figures; a short form is in make test-all;
#             `make -j2 faults` runs two at a time, `make faults-kills` that one
# make check    style, types, workflow
# make docs     the documentation as a site, in site/
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

# command -> the Debian package that has it
CLUSTER := slurmd:slurm-wlm munged:munge sshd:openssh-server

LONG := cases kills rounds memory

export NO_MKDOCS_2_WARNING := 1 # an advertisement

.PHONY: run test test-all test-cluster check docs bench faults $(LONG:%=faults-%)

run: $(INSTALLED)
	snakemake --cores $(CORES) $(if $(STUDY),--config study=$(STUDY))
	@python -m pipeline where

test: TIER := -m "not slow"
test test-all: $(INSTALLED)
	OMP_NUM_THREADS=1 pytest --ignore tests/cluster --numprocesses auto --dist worksteal $(TIER) $(PYTEST_FLAGS)

test-cluster: $(INSTALLED)
	missing=; \
	for pair in $(CLUSTER); do \
	  PATH=$$PATH:/usr/sbin:/sbin command -v $${pair%:*} >/dev/null || missing+=" $${pair#*:}"; \
	done; \
	if [[ $$missing ]]; then \
	  if ! command -v apt-get >/dev/null || (( EUID )); then \
	    echo "missing:$$missing; install them, or be root on Debian or Ubuntu" >&2; exit 1; \
	  fi; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update --quiet=2; \
	  apt-get install --quiet=2 --yes --no-install-recommends $$missing; \
	fi
	OMP_NUM_THREADS=1 pytest --numprocesses 2 --dist loadfile $(PYTEST_FLAGS) tests/cluster

bench: $(INSTALLED)
	OMP_NUM_THREADS=1 python -m tests.performance.bench reports/speed.md

faults: $(LONG:%=faults-%)

faults-cases: $(INSTALLED)
	FUZZ=2000 OMP_NUM_THREADS=1 pytest --numprocesses auto $(PYTEST_FLAGS) tests/faults tests/dag/test_faults.py

$(filter-out faults-cases,$(LONG:%=faults-%)): faults-%: $(INSTALLED)
	OMP_NUM_THREADS=1 python -m tests.faults.$*

check: $(INSTALLED)
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check Snakefile
	snakemake --lint

docs: $(INSTALLED)
	python -m mkdocs build --quiet

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with PYTHON=…")'
	$(PYTHON) -m venv .venv
	pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
