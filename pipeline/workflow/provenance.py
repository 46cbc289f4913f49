"""Records the versions that determine a result and, separately, the cost of computing it.

`versions` belongs in a table's metadata, since it determines the table. `cost` writes a sidecar
beside the data that no comparison reads, since time, memory and machine differ from run to run.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import write_json

VERSIONS = Path("pipeline/versions.yaml")
"""Library -> the version that computed the results."""

LIBRARIES = (
    *("lm_eval", "numpy", "polars", "rapidfuzz", "sacrebleu", "tokenizers", "torch"),
    "transformers",
)
"""The libraries that compute the contents of the tables."""


def versions() -> dict[str, str]:
    """Library -> installed version, with a build label such as ``+cpu``."""
    return {name: version(name) for name in LIBRARIES}


def write_versions() -> None:
    """Record the installed versions as those that computed the results."""
    YAML().dump(_unlabelled(), VERSIONS)


def require_versions() -> None:
    """Raise if the installed libraries differ from the versions recorded for the results.

    Raises:
        InputError: a version differs from the recorded one.
    """
    recorded, installed = YAML(typ="safe").load(VERSIONS), _unlabelled()
    differ = [name for name in LIBRARIES if installed[name] != recorded.get(name)]
    if differ:
        raise bad_input(
            "installed libraries",
            ", ".join(f"{name} {installed[name]}" for name in differ),
            ", ".join(f"{name} {recorded.get(name)}" for name in differ) + f" ({VERSIONS})",
            "install these, or record yours and measure anew: python -m pipeline versions",
        )


def _unlabelled() -> dict[str, str]:
    return {name: label.partition("+")[0] for name, label in versions().items()}


@contextmanager
def cost(path: Path) -> Iterator[dict[str, Any]]:
    """Write time and memory of the enclosed work to `path`; nothing is written if it fails.

    Yields:
        A dict for further notes: device, batch size, events.
    """
    notes: dict[str, Any] = {}
    started, cpu_before = time.perf_counter(), time.process_time()
    yield notes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_kib = peak / 1024 if sys.platform == "darwin" else peak
    write_json(
        path,
        {
            "wall_seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(time.process_time() - cpu_before, 2),
            "peak_memory_mib": round(peak_kib / 1024),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            **notes,
        },
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
