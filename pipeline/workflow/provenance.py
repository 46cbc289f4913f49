"""The versions of the libraries that compute the results: recorded, required, part of a table."""

from importlib.metadata import version
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.workflow.errors import bad_input
from pipeline.workflow.files import safe_yaml

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
    recorded, installed = safe_yaml(VERSIONS), _unlabelled()
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
