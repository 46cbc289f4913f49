"""loops.yaml, over which dvc.yaml loops, derived from params.yaml.

DVC's templates fill in values but have no conditions: which stages a study leaves out, and where a
user's input lies, must be written down before DVC reads it. So the file is written with
params.yaml, also by DVC's own composition (``derived: ${derived:}`` in pipeline/conf/config.yaml),
and the check of a study compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.interventions.interventions import OWN, OWN_EDITS
from pipeline.localization.schema import OWN_SCORERS
from pipeline.workflow.files import PARAMS, write_text

OPTIONAL = ("attribution", "benchmarks", "divergence", "generations", "windows")
"""Optional sections, each with a stage for every model; without the section there are none."""

LOOPS = Path("loops.yaml")

TAKES_MEAN = ("mean", "mlp-mean")
"""Edits for which benchmarks read the samples; those of a study's own may be such."""

IN_PARTS = ("memorization", "benchmarks")
"""Stages that `parts` cuts into several for each model."""


def loops(study: Mapping[str, Any]) -> dict[str, Any]:
    """What dvc.yaml loops over.

    Args:
        study: the sections, as read from YAML; missing sections and null are left out.

    Returns:
        A group of stages -> key -> the values in the templates of its stages; ``tables``: group ->
        the folder of its tables; ``tasks``: the folder of the benchmark tasks; ``edits``: that of
        the study's own edits, ``scorers`` of its scorers; and ``others``: that of the checkpoints,
        if some interventions put in the values of another model. Where a study has none, the folder
        is ``study.json``, which never changes.
    """
    data = f"data/{study['study']}"
    nothing = f"{data}/study.json"
    families, models = study.get("families") or {}, study.get("models") or {}
    asked = study.get("benchmarks") or {}

    def read_by(entry: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
        of_corpus = source["source"] in ("records", "training", "gguf")
        own = source.get("path")
        if source["source"] == "continued":
            own = f"{data}/samples/{entry['family']}.parquet"
        return {
            "source": source["source"],
            "input": str(own) if own else f"{data}/corpus" if of_corpus else nothing,
        }

    def base_of(checkpoint: Mapping[str, Any]) -> str:
        model = checkpoint.get("base")
        return f"{data}/checkpoints/{model}" if model else nothing

    def tokenizer_of(samples: Mapping[str, Any]) -> str:
        model = samples.get("tokenizer")  # of this study; else a repository, or none
        return f"{data}/checkpoints/{model}" if isinstance(model, str) else nothing

    made: dict[str, Any] = {
        "samples": {
            key: {**_of(each, "name"), **read_by(each, each["samples"])}
            | {"tokenizer": tokenizer_of(each["samples"])}
            for key, each in families.items()
        },
        "checkpoint": {
            key: {**_of(each, "name"), **read_by(each, each["checkpoint"])}
            | {"base": base_of(each["checkpoint"])}
            for key, each in models.items()
        },
        "theory": {key: _of(each, "name") for key, each in (study.get("theory") or {}).items()},
    }
    for group in OPTIONAL:
        of = models if study.get(group) else {}
        made[group] = {key: _of(each, "name", "family") for key, each in of.items()}
    windows = study.get("windows") or {}
    fields = {"documents": "documents", "reference": "reference_text", "corpus": "corpus"}
    texts = {name: windows.get(field) or nothing for name, field in fields.items()}
    read = _of(texts, "documents", "reference")
    made["windows"] = {key: {**each, **read} for key, each in made["windows"].items()}
    made["document"] = {study["study"]: _of(texts, "documents", "corpus")} if windows else {}
    count = int(study.get("parts") or 1)
    for group in IN_PARTS:
        of = models if group not in OPTIONAL or study.get(group) else {}
        made[group] = {
            key: {**_of(each, "name", "family")}
            | {"parts": f"{data}/parts/{group}/{each['name']}" if count > 1 else nothing}
            for key, each in of.items()
        }
        made[f"{group}_part"] = {
            f"{key}-{part}": {**_of(each, "name", "family"), "part": part}
            for key, each in of.items()
            for part in (f"{number}-of-{count}" for number in range(1, count + 1))
            if count > 1
        }
    made["tables"] = {
        group: f"{data}/{group}" if made[group] else nothing for group in (*OPTIONAL, "theory")
    }
    lines = [each for each in study.get("interventions") or [] if isinstance(each, Mapping)]
    own = any(OWN.fullmatch(str(line.get("edit"))) for line in lines)
    mean = own or any(line.get("edit") in TAKES_MEAN for line in lines)
    for group in ("benchmarks", "benchmarks_part"):
        for each in made[group].values():
            each["samples"] = f"{data}/samples/{each['family']}.parquet" if mean else nothing
    made["edits"] = str(OWN_EDITS) if own else nothing
    made["others"] = f"{data}/checkpoints" if any(each.get("source") for each in lines) else nothing
    located = study.get("localization") or {}
    bases = {name for names in (located.get("bases") or {}).values() for name in names}
    made["localized"] = {
        key: _of(each, "name", "family") for key, each in models.items() if each["name"] in bases
    }
    made["localization"] = {study["study"]: {"name": study["study"]}} if located else {}
    for table in ("localization", "removal"):
        made["tables"][table] = f"{data}/{table}.parquet" if located else nothing
    made["scorers"] = str(OWN_SCORERS) if located.get("scorers") else nothing
    mitigated = study.get("mitigations") or {}
    edited = [each for each in models.values() if each["name"] == mitigated.get("model")]
    made["mitigation"] = {
        f"{study['study']}-{method}": {"name": method, "model": each["name"]}
        | {"family": each["family"], "twin": each.get("twin")}
        for each in edited  # one, by the check of the study
        for method in mitigated["methods"]
    }
    made["tables"]["mitigations"] = f"{data}/mitigations.parquet" if mitigated else nothing
    made["mitigations"] = {study["study"]: {"name": study["study"]}} if mitigated else {}
    whence = "tasks" if study.get("corpus") else "datasets"
    made["tasks"] = (asked.get("folder") or f"{data}/{whence}") if asked else nothing
    return made


def model_key(address: str) -> str:
    """The key of a stage of a model: that in ``models``, without the part.

    Args:
        address: such as ``memorization_part@tiny-neo-8-2-of-4``, for which it is ``tiny-neo-8``.
    """
    group, _, key = address.partition("@")
    return re.sub(r"-\d+-of-\d+$", "", key) if group.endswith("_part") else key


def write_loops(study: Mapping[str, Any], path: Path = LOOPS) -> None:
    """Write loops.yaml.

    Args:
        study: as for `loops`.
        path: the file.
    """
    from omegaconf import OmegaConf

    # values are not interpolations: a path may contain ${
    write_text(path, OmegaConf.to_yaml({"loops": loops(study)}))


def register(*, writing: bool) -> None:
    """Let Hydra fill in ``${derived:}``, and ``${seeded:KEY,SEED}``, a model with another seed.

    The study in force, with its edits, becomes the option ``study=in-force``, the default of
    pipeline/conf/config.yaml.

    Args:
        writing: whether ``${derived:}``, the name of loops.yaml, writes the file; if not, whoever
            composes the study does so.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    def derived(*, _root_: DictConfig) -> str:
        if not writing:
            return str(LOOPS)
        sections = (
            *("corpus", "families", "models", "theory", "mitigations", "parts", "interventions"),
            "localization",
            *OPTIONAL,
        )
        study = {name: _root_.get(name) for name in ("study", *sections)}
        with suppress(KeyError, TypeError, AttributeError):  # the check of the study explains it
            write_loops(
                {
                    name: OmegaConf.to_container(value, resolve=True)
                    if OmegaConf.is_config(value)
                    else value
                    for name, value in study.items()
                }
            )
        return str(LOOPS)

    def seeded(key: str, seed: int, *, _root_: DictConfig) -> Any:
        model = _root_.models[key]
        changed = {"name": f"{model.name}-seed-{seed}", "checkpoint": {"seed": seed}}
        return OmegaConf.merge(model, changed)

    OmegaConf.register_new_resolver("derived", derived, replace=True)
    OmegaConf.register_new_resolver("seeded", seeded, replace=True)
    # a params.yaml that cannot be read is no option; another study is composed all the same
    with suppress(OSError, ValueError, YAMLError, OmegaConfBaseException):
        in_force = OmegaConf.load(PARAMS)
        if isinstance(in_force, DictConfig):
            in_force.pop("derived", None)  # of the edited study, by `derived` above
            ConfigStore.instance().store(
                group="study", name="in-force", package="_global_", node=in_force
            )


def _of(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: entry[name] for name in names}
