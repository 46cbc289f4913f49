# An image in which `make run` needs no network. From a clone:
#
#     docker build --tag bypass-memorization .
#     docker run --rm --network none --volume "$PWD/out:/study/reports" bypass-memorization
#
# For `snakemake --sdm apptainer`, from the same folder:
#
#     apptainer build bypass-memorization.sif docker-daemon:bypass-memorization:latest
FROM docker.io/library/python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /study
# with .git, since DVC needs a git repository; .dockerignore leaves results and environments out
COPY . .

# for CUDA: --build-arg PIP_EXTRA_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# any user may run the study: writable files, a writable HOME, a git that asks for no owner
RUN chmod --recursive a+rwX . && git config --system --add safe.directory '*' \
    && make .venv/.installed && pip cache purge

# `dvc` and `python` are found by rules that run in the image, too
ENV PATH=/study/.venv/bin:$PATH HOME=/tmp
CMD ["make", "run"]
