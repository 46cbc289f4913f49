"""Reads, checks, composes and switches studies.

`load` checks the whole file and reports every problem at once; every entry point calls it before
any work. `compose` writes params.yaml from pipeline/conf/, exactly as ``dvc exp run -S`` does.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.interventions.interventions import MisfitError
from pipeline.study.checks import cross_check, require_own_metrics
from pipeline.study.loops import LOOPS, loops, register, write_loops
from pipeline.study.schema import DERIVED, Study
from pipeline.workflow.errors import InputError, Problem, bad_input, disk_problem, shorten
from pipeline.workflow.files import PARAMS, write_text

CONF = Path("pipeline/conf")

GROUPS = ("study", "seeds")
"""Folders of `CONF` with the options of a choice; studies take sections from `shared`."""


def load(path: Path = PARAMS) -> Study:
    """Read and check a params.yaml.

    Raises:
        InputError: every problem of the file at once, each with what, got, expected, remedy.
    """
    study = check(read_yaml(path), str(path))
    if problem := _derivation(study, path):
        raise InputError(problem)
    return study


def check(values: object, where: str = str(PARAMS)) -> Study:
    """The study that `values` (as read from YAML) describe.

    Raises:
        InputError: every problem at once.
    """
    if not isinstance(values, Mapping):
        raise bad_input(
            where,
            shorten(values),
            "a mapping of sections",
            "compose it again: python -m pipeline study tiny",
        )
    try:
        study = Study.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(*(_from_pydantic(e, where) for e in error.errors())) from None
    if problems := cross_check(study, where):
        raise InputError(*problems)
    require_own_metrics(study)
    return study


def compose(choices: Mapping[str, str], conf: Path = CONF, path: Path = PARAMS) -> Study:
    """Write params.yaml for other choices of pipeline/conf/, such as ``{"study": "tiny"}``.

    A choice is a folder of `conf` -> a file in it. It uses DVC's own composition (Hydra), so ``dvc
    exp run -S study=NAME`` writes the same bytes. The file is replaced only if the study passes
    every check.

    Raises:
        InputError: no such group or option, or the composed study has problems.
    """
    from dvc.utils.hydra import compose_and_dump

    register(writing=False)
    groups = {each: sorted(f.stem for f in (conf / each).glob("*.yaml")) for each in GROUPS}
    problems = [
        Problem(
            f"choice {group}={option}",
            option if group in groups else group,
            "one of " + ", ".join(groups.get(group, groups)),
            f"name one of these, or write {conf / group / option}.yaml",
        )
        for group, option in choices.items()
        if option not in groups.get(group, ())
    ]
    if problems:
        raise InputError(*problems)
    overrides = [f"{group}={option}" for group, option in choices.items()]
    with TemporaryDirectory() as folder:
        composed = Path(folder, PARAMS.name)
        try:
            # without DVC's plugins, which would write loops.yaml before the checks
            compose_and_dump(
                composed, str(conf.resolve()), None, "config", str(conf / "study"), overrides
            )
        except Exception as error:  # YAML's, OmegaConf's, Hydra's and DVC's
            if disk_problem(error):
                raise
            raise bad_input(
                ", ".join(overrides) or str(conf / "config.yaml"),
                shorten(f"{type(error).__name__}: {error}", 300),
                f"files of {conf} that can be composed",
                "correct the named file",
            ) from error
        values = read_yaml(composed)
    study = check(values, str(path))
    write(values, path)
    return study


def derive() -> Study:
    """Derive loops.yaml from params.yaml again, and fill in the optional sections.

    Raises:
        InputError: the study has other problems.
    """
    values = read_yaml(PARAMS)
    if isinstance(values, dict):
        optional = {
            name: field.get_default(call_default_factory=True)
            for name, field in Study.model_fields.items()
            if not field.is_required()
        }
        values = {**optional, **values}
        values.pop("loops", None)  # which earlier versions kept in params.yaml
    study = check(values)
    write(values, PARAMS)
    return study


def write(values: Mapping[str, Any], path: Path) -> None:
    """Write a checked study to `path`, in the same form as `compose`, and loops.yaml beside it."""
    from omegaconf import OmegaConf

    write_loops(values, path.with_name(LOOPS.name))
    # values are not interpolations: a path may contain ${
    write_text(path, OmegaConf.to_yaml(values))


def _derivation(study: Study, path: Path) -> Problem | None:
    """The problem if loops.yaml, beside `path`, is not what dvc.yaml is to loop over."""
    file = path.with_name(LOOPS.name)
    content = read_yaml(file) if file.is_file() else None
    looped = content.get("loops") if isinstance(content, dict) else None
    recorded, derived = looped if isinstance(looped, dict) else {}, loops(study)
    missing = sorted({*Study.model_fields} - study.model_fields_set - {DERIVED})
    if recorded == derived and not missing:  # DVC wants every section, be it null
        return None
    other = [group for group, entries in derived.items() if recorded.get(group) != entries]
    other += [f"no section {each}, not even null" for each in missing]
    return Problem(
        f"{path}: {LOOPS}",
        "entries that do not match the other sections: "
        + (", ".join(other) or shorten(sorted(set(recorded) - set(derived)))),
        "the file that is derived from them",
        "derive it again: python -m pipeline study",
    )


def switch(choices: Mapping[str, str], dry_run: bool) -> Study:
    """Switch to the study of some choices, as for `compose`; none leaves the study in force.

    If it is in force already, it is kept with its edits. A dry run may not write params.yaml.

    Raises:
        InputError: as for `load` and `compose`; or a dry run would have to change the study.
    """
    if not choices:
        return _in_force(dry_run)
    if set(choices) == {"study"}:
        values = read_yaml(PARAMS) if PARAMS.exists() else None
        if isinstance(values, Mapping) and values.get("study") == choices["study"]:
            return _in_force(dry_run)
    if dry_run:
        others = [f"{group}={option}" for group, option in choices.items() if group != "study"]
        command = " ".join(["python -m pipeline study", choices.get("study", "NAME"), *others])
        raise bad_input(
            "dry run of another study",
            ", ".join(f"{group}={option}" for group, option in choices.items()),
            "the study in force, since a dry run changes no file",
            f"run this first: {command}",
        )
    return compose(choices)


def _in_force(dry_run: bool) -> Study:
    """The study of params.yaml, loops.yaml derived again where an edit calls for it."""
    if dry_run or not _derivation(check(read_yaml(PARAMS)), PARAMS):
        return load()
    return derive()


def read_yaml(path: Path) -> Any:
    """The content of a YAML file of params.

    Raises:
        InputError: it cannot be read, or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        refused = disk_problem(error)
        if refused and not isinstance(error, FileNotFoundError):
            raise InputError(refused) from error
        raise bad_input(
            str(path),
            str(error),
            "a readable UTF-8 file",
            "compose it: python -m pipeline study tiny",
        ) from error
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # each constructor of YAML's types raises its own
        got = str(error) if isinstance(error, YAMLError) else f"{type(error).__name__}: {error}"
        raise bad_input(
            str(path), shorten(got), "YAML", "correct the line, or compose the file again"
        ) from error


TAGS: dict[int | str, int] = {"families": 3, "models": 3, "theory": 2}
"""Section -> position of the union member's tag in pydantic's path of an error."""


def _from_pydantic(error: ErrorDetails, where: str) -> Problem:
    tag = TAGS.get(error["loc"][0]) if error["loc"] else None  # its source, which is no key
    keys = [part for at, part in enumerate(error["loc"]) if at != tag and part != "[key]"]
    what = f"{where}: {'.'.join(map(_part, keys)) or 'the whole file'}"
    context = error.get("ctx", {})
    if error["type"].startswith("union_tag"):
        return Problem(
            f"{what}.{context['discriminator'].strip(chr(39))}",
            context.get("tag", "nothing"),
            f"one of {context.get('expected_tags', 'the sources that docs/studies.md lists')}",
            "name one of these",
        )
    if error["type"] == "study":
        return Problem(what, context["got"], context["expected"], context["remedy"])
    if isinstance(misfit := context.get("error"), MisfitError):
        remedy = "correct the line; docs/studies.md describes its fields"
        return Problem(what, misfit.got, misfit.expected, remedy)
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known_keys(error["loc"][:-1])
        near = difflib.get_close_matches(_part(error["loc"][-1]), known, n=1)
        return Problem(
            what,
            f"the unknown key {_part(error['loc'][-1])}",
            "one of " + ", ".join(known),
            f"did you mean {near[0]}?" if near else "remove it",
        )
    if error["type"] == "missing":
        return Problem(what, "nothing", "a value", "add the key; docs/studies.md describes it")
    return Problem(
        what,
        shorten(error["input"]),
        error["msg"].replace("String should match pattern", "text that matches the pattern"),
        "correct the value; docs/studies.md describes it",
    )


def _part(part: int | str) -> str:
    """A part of a path in the file, shortened, since a user's key may be any text."""
    return part if isinstance(part, str) and len(part) <= 80 else shorten(part)


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys that the schema has at `location`, found by walking down its JSON form."""
    schema = Study.model_json_schema()
    node: dict[str, Any] = schema
    for part in location:
        if tagged := node.get("discriminator"):
            node = schema["$defs"][tagged["mapping"][part].rsplit("/", 1)[-1]]
            continue
        by_pattern = list(node.get("patternProperties", {}).values())  # a mapping by `Key`
        below = node.get("items") if isinstance(part, int) else None
        node = below or node.get("properties", {}).get(part) or (by_pattern or [{}])[0]
        node = next((option for option in node.get("anyOf", []) if "$ref" in option), node)
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return list(node.get("properties", {}))
