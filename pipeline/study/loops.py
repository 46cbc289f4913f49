"""loops.yaml, over which dvc.yaml loops, derived from params.yaml.

DVC's templates fill in values but have no conditions: which stages a study leaves out, and where a
user's input lies, must be written down before DVC reads it. So the file is written with
params.yaml, also by DVC's own composition (``derived: ${derived:}`` in pipeline/conf/config.yaml),
and the check of a study compares the two.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
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

PART = re.compile(r"-(\d+-of-\d+)$")
"""The end of the key of a part."""

IN_PARTS = ("memorization", "benchmarks")
"""Stages that `parts` cuts into several for each model."""


def loops(study: Mapping[str, Any]) -> dict[str, Any]:
    """What dvc.yaml loops over, from the sections of a study; missing ones and null are left out.

    Returns:
        A group of stages -> key -> the values in the templates of its stages; ``tables``: group ->
        the folder of its tables; ``tasks``: the folder of the benchmark tasks; ``edits``: that
        of the study's own edits, ``scorers`` of its scorers; and ``others``: that of the
        checkpoints, if some interventions put in the values of another model. Where a study has
        none, the folder is ``study.json``, which never changes.
    """
    data = f"data/{study['study']}"
    nothing = f"{data}/study.json"
    sections = ("families", "models", "theory", "benchmarks", "windows", "localization")
    families, models, theory, asked, windows, located = (study.get(s) or {} for s in sections)
    mitigated = study.get("mitigations") or {}

    def got(entry: Mapping[str, Any], section: str, other: str) -> dict[str, Any]:
        made = entry[section]
        source, own, model = made["source"], made.get("path"), made.get(other)
        if source in ("records", "training", "gguf"):
            own = f"{data}/corpus"
        elif source == "continued":
            own = f"{data}/samples/{entry['family']}.parquet"
        return {
            "name": entry["name"],
            "source": source,
            "input": str(own or nothing),
            # a model of this study; else a repository, or none
            other: f"{data}/checkpoints/{model}" if isinstance(model, str) else nothing,
        }

    made: dict[str, Any] = {
        "samples": {key: got(each, "samples", "tokenizer") for key, each in families.items()},
        "checkpoint": {key: got(each, "checkpoint", "base") for key, each in models.items()},
        "theory": {key: _of(each, "name") for key, each in theory.items()},
    }
    named = {key: _of(each, "name", "family") for key, each in models.items()}
    for group in OPTIONAL:
        made[group] = deepcopy(named) if study.get(group) else {}
    fields = {"documents": "documents", "reference": "reference_text", "corpus": "corpus"}
    texts = {name: windows.get(field) or nothing for name, field in fields.items()}
    for each in made["windows"].values():
        each |= _of(texts, "documents", "reference")
    made["document"] = {study["study"]: _of(texts, "documents", "corpus")} if windows else {}
    lines = [each for each in study.get("interventions") or [] if isinstance(each, Mapping)]
    own = any(OWN.fullmatch(str(line.get("edit"))) for line in lines)
    mean = own or any(line.get("edit") in TAKES_MEAN for line in lines)
    count = int(study.get("parts") or 1)
    parts = [f"{number}-of-{count}" for number in range(1, count + 1)] if count > 1 else []
    made["memorization"] = deepcopy(named)
    for group in IN_PARTS:
        for each in made[group].values():
            each["parts"] = f"{data}/parts/{group}/{each['name']}" if parts else nothing
            if group == "benchmarks":
                each["samples"] = f"{data}/samples/{each['family']}.parquet" if mean else nothing
        made[f"{group}_part"] = {
            f"{key}-{part}": {**each, "parts": nothing, "part": part}
            for key, each in made[group].items()
            for part in parts
        }
    made["tables"] = {
        group: f"{data}/{group}" if made[group] else nothing for group in (*OPTIONAL, "theory")
    }
    joined = {"localization": located, "removal": located, "mitigations": mitigated}
    for table, there in joined.items():
        made["tables"][table] = f"{data}/{table}.parquet" if there else nothing
    made["edits"] = str(OWN_EDITS) if own else nothing
    made["others"] = f"{data}/checkpoints" if any(each.get("source") for each in lines) else nothing
    bases = {name for names in (located.get("bases") or {}).values() for name in names}
    made["localized"] = {key: each for key, each in named.items() if each["name"] in bases}
    once = {study["study"]: {"name": study["study"]}}
    made["localization"] = once if located else {}
    made["scorers"] = str(OWN_SCORERS) if located.get("scorers") else nothing
    made["mitigation"] = {
        f"{study['study']}-{method}": {"name": method, "model": each["name"]}
        | {"family": each["family"], "twin": each.get("twin")}
        for each in models.values()  # one, by the check of the study
        if each["name"] == mitigated.get("model")
        for method in mitigated["methods"]
    }
    made["mitigations"] = once if mitigated else {}
    whence = "tasks" if study.get("corpus") else "datasets"
    made["tasks"] = (asked.get("folder") or f"{data}/{whence}") if asked else nothing
    return made


def parsed(address: str) -> tuple[str, str, str]:
    """Group, key and part of a stage; the group of a table's parts is that of the table.

    ``memorization_part@tiny-neo-8-2-of-4`` is of ``memorization``, ``tiny-neo-8`` and ``2-of-4``;
    the part is empty if the stage is not of one.
    """
    group, _, key = address.partition("@")
    part = PART.search(key) if group.endswith("_part") else None
    return (
        group.removesuffix("_part"),
        key[: part.start()] if part else key,
        part[1] if part else "",
    )


def write_loops(study: Mapping[str, Any], path: Path = LOOPS) -> None:
    """Write loops.yaml of a study."""
    from omegaconf import OmegaConf

    # values are not interpolations: a path may contain ${
    write_text(path, OmegaConf.to_yaml({"loops": loops(study)}))


def register(*, writing: bool) -> None:
    """Let Hydra fill in ``${derived:}``, and ``${seeded:KEY,SEED}``, a model with another seed.

    ``${derived:}``, the name of loops.yaml, writes the file if `writing`; if not, whoever composes
    the study does so. The study in force, with its edits, becomes the option ``study=in-force``,
    the default of pipeline/conf/config.yaml.
    """
    from hydra.core.config_store import ConfigStore
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    def derived(*, _root_: DictConfig) -> str:
        if not writing:
            return str(LOOPS)
        sections = OmegaConf.masked_copy(_root_, [str(key) for key in _root_ if key != "derived"])
        with suppress(KeyError, TypeError, AttributeError):  # the check of the study explains it
            values: Any = OmegaConf.to_container(sections, resolve=True)
            write_loops(values)
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
