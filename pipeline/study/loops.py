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

from pydantic import ValidationError

from pipeline.interventions.interventions import OWN_EDITS, is_own
from pipeline.localization.schema import OWN_SCORERS
from pipeline.study.schema import Study
from pipeline.workflow.errors import InputError
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


def loops(study: Study) -> dict[str, Any]:
    """What dvc.yaml loops over, from the sections of a study.

    Returns:
        A group of stages -> key -> the values in the templates of its stages; ``tables``: group ->
        the folder of its tables; ``tasks``: the folder of the benchmark tasks; ``edits``: that
        of the study's own edits, ``scorers`` of its scorers; and ``others``: that of the
        checkpoints, if some interventions put in the values of another model. Where a study has
        none, the folder is ``study.json``, which never changes.
    """
    data, nothing = str(study.data), f"{study.data}/study.json"

    def got(entry: Any, made: Any, other: str) -> dict[str, str]:
        own, model = getattr(made, "path", nothing), getattr(made, other, None)
        if made.source in ("records", "training", "gguf"):
            own = f"{data}/corpus"
        elif made.source == "continued":
            own = f"{data}/samples/{entry.family}.parquet"
        return {
            "name": entry.name,
            "source": made.source,
            "input": own,
            # a model of this study; else a repository, or none
            other: f"{data}/checkpoints/{model}" if isinstance(model, str) else nothing,
        }

    families, models = study.families.items(), study.models.items()
    made: dict[str, Any] = {
        "samples": {key: got(each, each.samples, "tokenizer") for key, each in families},
        "checkpoint": {key: got(each, each.checkpoint, "base") for key, each in models},
        "theory": {key: {"name": each.name} for key, each in study.theory.items()},
    }
    named = {key: {"name": each.name, "family": each.family} for key, each in models}
    for group in OPTIONAL:
        made[group] = deepcopy(named) if getattr(study, group) else {}
    made["document"] = {}
    if windows := study.windows:
        reference, corpus = windows.reference_text or nothing, windows.corpus or nothing
        for each in made["windows"].values():
            each |= {"documents": windows.documents, "reference": reference}
        made["document"] = {study.study: {"documents": windows.documents, "corpus": corpus}}
    lines, count = study.interventions, study.parts
    own = any(is_own(line.edit) for line in lines)
    mean = own or any(line.edit in TAKES_MEAN for line in lines)
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
    located, mitigated = study.localization, study.mitigations
    joined = {"localization": located, "removal": located, "mitigations": mitigated}
    for table, there in joined.items():
        made["tables"][table] = f"{data}/{table}.parquet" if there else nothing
    made["edits"] = str(OWN_EDITS) if own else nothing
    made["others"] = f"{data}/checkpoints" if any(line.source for line in lines) else nothing
    made["localized"] = {key: named[key] for key in study.localized}
    once = {study.study: {"name": study.study}}
    made["localization"] = once if located else {}
    made["scorers"] = str(OWN_SCORERS) if located and located.scorers else nothing
    made["mitigation"] = {}
    if mitigated:
        edited = study.model(mitigated.model)
        of = {"model": edited.name, "family": edited.family, "twin": edited.twin}
        made["mitigation"] = {key: {"name": name, **of} for key, name in study.mitigated.items()}
    made["mitigations"] = once if mitigated else {}
    made["tasks"] = str(study.tasks)
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
    """Write loops.yaml of a study, from its sections.

    Raises:
        pydantic.ValidationError: they are not those of a study.
    """
    from omegaconf import OmegaConf

    # values are not interpolations: a path may contain ${
    write_text(path, OmegaConf.to_yaml({"loops": loops(Study.model_validate(study))}))


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
        with suppress(ValidationError, InputError):  # the check of the study explains it
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
