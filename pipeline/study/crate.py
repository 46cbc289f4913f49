"""Writes the study in force as a Workflow Run RO-Crate: its provenance in a form that others read.

The crate follows Provenance Run Crate, the most detailed of these profiles: every run of a stage is
an action with the tool, what it read and what it wrote. DVC's md5 of each output is its identifier.

Source: https://w3id.org/ro/wfrun/provenance/0.5 and the profiles that it builds on.
"""

import mimetypes
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import networkx
from rocrate.model import ComputationalWorkflow, ContextEntity
from rocrate.model.entity import Entity
from rocrate.rocrate import ROCrate

from pipeline.interventions.interventions import OWN_EDITS
from pipeline.localization.schema import OWN_SCORERS
from pipeline.report.provenance import CITATION, git_state
from pipeline.study.schema import Study
from pipeline.workflow.dag import FIRST, LOCK, Dag, Stage
from pipeline.workflow.digest import OWN
from pipeline.workflow.errors import bad_input, run_command
from pipeline.workflow.files import PARAMS, atomic, files_of, safe_yaml

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}

BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"

DEFINITION = ("dvc.yaml", "dvc.lock", "loops.yaml", "constraints.txt", "README.md", "LICENSE")
"""What defines and describes the workflow beside the Snakefile, the package and params.yaml."""

FOLDERS = (Path("pipeline"), Path(OWN), OWN_EDITS, OWN_SCORERS)
"""Of the code, the study's own among it."""

LARGE = ("checkpoint", "datasets", "benchmarks_part", "memorization_part")
"""Groups of stages of which only JSON is packed: not weights, datasets, and parts of tables."""

PARQUET = "application/vnd.apache.parquet"


def write_crate(study: Study, to: Path) -> None:
    """Write a finished study with its code, tables and report as one zip, which is replaced.

    Weights and datasets are left out; the manifests of checkpoints and datasets identify them.

    Raises:
        InputError: a stage of the study has to run first.
    """
    dag = Dag()
    if dag.stale:
        raise bad_input(
            f"study {study.study}",
            f"{len(dag.stale)} stages to run, such as {', '.join(sorted(dag.stale)[:3])}",
            "a study whose stages are all up to date",
            f"{run_command(study.study)}, then the same command again",
        )
    crate = _Crate(dag, study).crate
    with atomic(to) as zipped:
        crate.write_zip(zipped)


class _Crate:
    """The crate as it grows: `crate` has the workflow, one tool and step a group, all actions."""

    def __init__(self, dag: Dag, study: Study) -> None:
        self._dag, self._cited = dag, safe_yaml(CITATION)
        self.crate = ROCrate(version="1.1")
        self._author = self._add("#author", "Organization", name=self._cited["authors"][0]["name"])
        self._describe(study)
        self._workflow = self._added_workflow()
        self._params = self.crate.add_file(PARAMS, PARAMS, properties=_format(PARAMS))
        locked = safe_yaml(LOCK)["stages"]
        order = networkx.lexicographical_topological_sort(dag.graph)
        stages = [dag.stages[name] for name in order if dag.stages[name].group not in FIRST]
        steps = self._steps(dict.fromkeys(stage.group for stage in stages))
        written = [
            self._output(stage, out["path"], out["md5"])
            for stage in stages
            for out in locked[stage.address]["outs"]
        ]
        run = self.crate.add_action(
            self._workflow,
            "#run",
            object=[self._params],
            result=written,
            properties={
                "name": f"Run of study {study.study}",
                "description": f"All {len(stages)} stages of the study.",
                "agent": {"@id": self._author.id},
            },
        )
        self.crate.root_dataset["mentions"] = [run]
        controls = [self._action(stage, steps[stage.group]) for stage in stages]
        if (readme := self.crate.get("README.md")) is not None:
            readme["about"] = self.crate.root_dataset
        self._add(
            "#engine-run",
            "OrganizeAction",
            name="Run of the stages by Snakemake and DVC",
            instrument=self._add(
                "#engine",
                "SoftwareApplication",
                name="Snakemake and DVC",
                softwareVersion=f"{version('snakemake')} and {version('dvc')}",
                url="https://snakemake.github.io",
            ),
            object=controls,
            result=run,
            agent=self._author,
        )
        page = self.crate.get(str(study.reports / "index.html"))
        self._parameter("input", "params", self._params)
        self._parameter("output", "report", page)

    def _describe(self, study: Study) -> None:
        root, cited = self.crate.root_dataset, self._cited
        root["name"] = f"Study {study.study} of {cited['title']}"
        root["description"] = (
            f"The code, parameters, tables and report of the study {study.study}, and what each of "
            "its stages read and wrote. Weights and datasets are not packed: their manifests name "
            "them by commit and checksum. The license is that of the code; texts and models keep "
            "their own."
        )
        spdx = f"https://spdx.org/licenses/{cited['license']}"
        root["license"] = self._add(spdx, "CreativeWork", name=cited["license"], identifier=spdx)
        root["author"] = self._author
        paper = cited["preferred-citation"]
        root["citation"] = self._add(paper["url"], "ScholarlyArticle", name=paper["title"])
        root["conformsTo"] = [
            self._add(uri, ["CreativeWork", "Profile"], name=name, version=uri.rsplit("/", 1)[1])
            for uri, name in PROFILES.items()
        ]

    def _added_workflow(self) -> Entity:
        properties = {
            "@type": [*ComputationalWorkflow.TYPES, "HowTo"],
            "name": self._cited["title"],
            "version": str(self._cited["version"]),
            "conformsTo": {"@id": BIOSCHEMAS},
            **_format(Path("Snakefile")),
        }
        if git := git_state(Path()):
            changes = " with changes that are not committed" if git["dirty"] else ""
            properties["identifier"] = f"git commit {git['commit']}{changes}"
        workflow: Entity = self.crate.add_workflow(
            "Snakefile",
            "Snakefile",
            main=True,
            lang="snakemake",
            lang_version=version("snakemake"),
            properties=properties,
        )
        workflow["creator"] = self._author
        workflow["license"] = self.crate.root_dataset["license"]
        code = sorted(path for folder in FOLDERS for path in files_of(folder))
        for path in (*map(Path, DEFINITION), CITATION, *code):
            if path.is_file():
                at = path.name if path == CITATION else path
                self.crate.add_file(path, at, properties=_format(path))
        return workflow

    def _steps(self, groups: Iterable[str]) -> dict[str, Entity]:
        """Group -> its step, which names the group's tool."""
        steps = {}
        release = self.crate.mainEntity["version"]
        for position, group in enumerate(groups, 1):
            told = self._dag.declared[group]["do"]["desc"]
            tool = self._add(
                f"#tool-{group}",
                "SoftwareApplication",
                name=group,
                description=told,
                softwareVersion=release,
            )
            self._workflow.append_to("hasPart", tool)
            steps[group] = self._add(
                f"#step-{group}",
                "HowToStep",
                name=group,
                description=told,
                position=str(position),
                workExample=tool,
            )
            self._workflow.append_to("step", steps[group])
        return steps

    def _output(self, stage: Stage, path: str, md5: str) -> Entity:
        """A file or folder that a stage wrote, and its files."""
        file, known = Path(path), {"identifier": f"md5:{md5}"}
        packed = list(_packed(file, json_alone=stage.group in LARGE))
        if not packed:
            return self._elsewhere(path, **known)
        if file.is_file():
            return self._file(file, **known)
        folder: Entity = self.crate.add_dataset(dest_path=f"{path}/", properties=known)
        folder["name"] = path
        for each in packed:
            folder.append_to("hasPart", self._file(each))
        return folder

    def _input(self, path: str) -> Entity:
        """What a stage read: an output of another, or a file that the user gave."""
        for name in (path, f"{path}/", f"#{path}"):
            if (entity := self.crate.get(name)) is not None:
                return entity
        within = Path(path).is_file() and not Path(path).is_absolute() and ".." not in path
        return self._file(Path(path)) if within else self._elsewhere(path)

    def _file(self, path: Path, **properties: str) -> Entity:
        properties |= _format(path)
        added: Entity = self.crate.add_file(path, path, properties=properties, record_size=True)
        return added

    def _elsewhere(self, path: str, /, **properties: str) -> Entity:
        """What is named and not packed."""
        return self._add(f"#{path}", "CreativeWork", name=path, **properties)

    def _action(self, stage: Stage, step: Entity) -> Entity:
        """The run of a stage, as the action that controlled it."""
        action = self.crate.add_action(
            step["workExample"],
            f"#run-{stage.address}",
            object=[self._params, *map(self._input, self._dag.inputs(stage))],
            result=list(map(self._input, stage.outs)),
            properties={
                "name": stage.address,
                "description": step["description"],
                "agent": {"@id": self._author.id},
            },
        )
        self.crate.root_dataset.append_to("mentions", action)
        return self._add(
            f"#control-{stage.address}",
            "ControlAction",
            name=f"{stage.address} as a step",
            instrument=step,
            object=action,
        )

    def _parameter(self, side: str, name: str, example: Entity) -> None:
        parameter = self.crate.add_formal_parameter(
            name, "File", identifier=f"#parameter-{name}", properties={"workExample": example}
        )
        self._workflow.append_to(side, parameter)
        example["exampleOfWork"] = parameter

    def _add(self, name: str, kind: str | list[str], /, **properties: Any) -> Entity:
        entity: Entity = self.crate.add(ContextEntity(self.crate, name, {"@type": kind}))
        for key, value in properties.items():
            entity[key] = value
        return entity


def _packed(path: Path, json_alone: bool) -> Iterator[Path]:
    """The files of an output that go into the crate."""
    for file in files_of(path):
        hidden = any(part.startswith(".") for part in file.parts)
        if not hidden and (file.suffix == ".json" or not json_alone):
            yield file


def _format(path: Path) -> dict[str, str]:
    """The media type of a file, where it is known."""
    guessed = PARQUET if path.suffix == ".parquet" else mimetypes.guess_type(path)[0]
    return {"name": str(path), "encodingFormat": guessed or "text/plain"}
