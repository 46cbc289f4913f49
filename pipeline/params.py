"""The schema of params.yaml, the study in force: type, range, unit, default, source.

`load` checks the whole file and reports every problem at once; every entry point calls it before
any work. `compose` writes params.yaml from pipeline/conf/, exactly as ``dvc exp run -S`` does.

The stages never see this module's classes: ``__main__`` hands them plain values, and dvc.yaml
lists for each stage the keys that are handed to it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import InputError, Problem, shorten

PARAMS = Path("params.yaml")
CONF = Path("pipeline/conf")
GENERATED_TASKS = tuple(
    f"tiny_{task}" for task in ("arc_easy", "hellaswag", "piqa", "lambada_openai", "wikitext")
)
PILE_PREFIX, PILE_SUFFIX = 150, 50
RUN_SECTION = "run"
"""The one section that cannot change a result, and that no stage depends on."""

Key = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""Names a stage: lower case, digits, hyphen, underscore; no dot, which DVC would split at."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""Names a file and a line in a figure: letters, digits, hyphen, underscore, dot; no slash."""

Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Dtype = Literal["float32", "float16", "bfloat16"]


class Section(BaseModel):
    """Closed: an unknown key is an error; and without coercion: "12" is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Corpus(Section):
    """The generated text world of a study that needs no network."""

    seed: Seed = Field(description="of the world, the records and the order of the rows")
    row_length: int = Field(
        ge=16, le=1024, description="tokens of a training row and of a record; the models' context"
    )
    vocabulary: int = Field(ge=300, le=65_536, description="entries of the byte-level BPE")
    world_tokens: int = Field(ge=1_000, description="tokens of world text in the training rows")
    records: dict[Count, Count] = Field(
        min_length=1, description="copies of a record in the training rows -> records so planted"
    )
    control_records: Count = Field(description="records that are never planted")
    task_items: Count = Field(description="held-out items of each benchmark task")


class Family(Section):
    """The samples of one model family."""

    name: Name = Field(description="as the tables and figures call it")
    source: Literal["records", "pile"] = Field(description="the module of pipeline/samples/")
    input: Literal["corpus", "study.json"] = Field(
        description="what below data/STUDY/ the samples stage reads: the generated corpus, or, "
        "for samples that are fetched, nothing but the checked study"
    )
    prefix_length: Count = Field(description="P, tokens; the paper: 150 GPT-Neo, 32 Pythia")
    suffix_length: Count = Field(description="S, tokens; the paper: 50 GPT-Neo, 32 Pythia")
    memorized_copies: Count | None = Field(
        description="records planted at least so often are the memorized split"
    )

    @model_validator(mode="after")
    def _source_fits_input(self) -> Family:
        if (self.source == "records") != (self.input == "corpus"):
            raise _problem(
                f"source {self.source} with input {self.input}",
                "input: corpus for source: records; input: study.json for any other source",
                "set `input` to what the source reads",
            )
        if (self.source == "records") != (self.memorized_copies is not None):
            raise _problem(
                f"source {self.source} with memorized_copies {self.memorized_copies}",
                "memorized_copies with source: records, and with no other source",
                "give the number of copies for planted records; remove it elsewhere",
            )
        return self


class Training(Section):
    """How a small model is trained from scratch on the corpus."""

    architecture: Literal["gpt_neox", "gpt_neo"] = Field(description="as transformers names it")
    n_blocks: Count = Field(
        description="L; even for gpt_neo, whose blocks attend globally and locally in turn"
    )
    width: Count = Field(description="D, size of the hidden state")
    n_heads: Count = Field(description="H, attention heads; divides the width")
    window: Count | None = Field(
        description="tokens that a local block of gpt_neo sees, the current one included; null "
        "for all, and for gpt_neox, which has no such blocks",
    )
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    matrix_learning_rate: float = Field(
        gt=0, lt=10, description="peak, Muon, matrices of the blocks"
    )
    other_learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW, all other parameters")

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Training:
        if self.width % self.n_heads:
            raise _problem(
                f"width {self.width}, n_heads {self.n_heads}",
                "a width that n_heads divides",
                "change one of the two",
            )
        if self.architecture == "gpt_neox" and self.window is not None:
            raise _problem(
                f"architecture gpt_neox, window {self.window}",
                "a window for gpt_neo alone",
                "remove the window",
            )
        if self.architecture == "gpt_neo" and self.n_blocks % 2:
            raise _problem(
                f"architecture gpt_neo, n_blocks {self.n_blocks}",
                "an even number of blocks",
                "add or remove a block",
            )
        return self


class Model(Section):
    """One checkpoint, and where it comes from. This is the one entry that adds a model."""

    name: Name = Field(description="as the tables and figures call it")
    family: Name = Field(description="whose samples it completes: the name of a family")
    source: Literal["training"] = Field(description="the module of pipeline/checkpoints/")
    input: Literal["corpus"] = Field(description="what below data/STUDY/ that stage reads")
    seed: Seed = Field(description="of the initial weights and the order of the rows")
    training: Training


Named = TypeVar("Named", Family, Model)


class Benchmarks(Section):
    """What lm-eval evaluates, in its own terms."""

    tasks: list[Key] = Field(min_length=1, description="each once, as lm-eval names it")
    num_fewshot: int = Field(ge=0, description="examples before each question")
    limit: Count | None = Field(description="documents a task; null for all")


class Evaluation(Section):
    """How every model is evaluated, in all stages that evaluate."""

    dtype: Dtype = Field(description="of the weights while evaluating; float32 is the reference")


class Statistics(Section):
    """Intervals."""

    seed: Seed = Field(description="of the bootstrap")


class Run(Section):
    """What cannot change a result: where things lie, how much is done at once."""

    threads: Count = Field(default=1, description="CPU threads of one evaluation job")
    token_budget: Count | None = Field(
        default=None,
        description="tokens evaluated at once, counted for each branch of the interventions; null: "
        "as many as the free memory allows",
    )
    pile_folder: str | None = Field(
        default=None, description="folder that holds the three .npy files; null: download them"
    )


class Study(Section):
    """One study: what is measured, on what, and how."""

    study: Key = Field(description="names data/STUDY/ and reports/STUDY/")
    corpus: dict[Key, Corpus] = Field(max_length=1, description="by the study's name; or none")
    families: dict[Key, Family] = Field(min_length=1)
    models: dict[Key, Model] = Field(min_length=1)
    benchmarks: Benchmarks
    evaluation: Evaluation
    statistics: Statistics
    run: Run

    @property
    def data(self) -> Path:
        """data/STUDY, where every table of the study lies."""
        return Path("data") / self.study

    @property
    def reports(self) -> Path:
        """reports/STUDY, where its report lies."""
        return Path("reports") / self.study

    def model(self, name: str) -> Model:
        """The model called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.models, name, "model")

    def family(self, name: str) -> Family:
        """The family called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.families, name, "family")


def load(path: str | Path = PARAMS) -> Study:
    """Read and check a study.

    Args:
        path: a params.yaml.

    Raises:
        InputError: every problem of the file at once, each with what, got, expected, remedy.
    """
    return check(_read(Path(path)), str(path))


def check(values: object, where: str = str(PARAMS)) -> Study:
    """The study that `values` (as read from YAML) describe.

    Raises:
        InputError: every problem at once.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            Problem(
                where,
                shorten(values),
                "a mapping of sections",
                "compose it again: python -m pipeline study tiny",
            )
        )
    try:
        study = Study.model_validate(dict(values))
    except ValidationError as error:
        raise InputError(*(_from_pydantic(e, where) for e in error.errors())) from None
    if problems := _cross_check(study, where):
        raise InputError(*problems)
    return study


def compose(choices: Mapping[str, str], conf: Path = CONF, path: Path = PARAMS) -> Study:
    """Write params.yaml for other choices of pipeline/conf/, such as ``{"study": "tiny"}``.

    It is DVC's own composition (Hydra), so ``dvc exp run -S study=NAME`` writes the same bytes.
    The file is only replaced by a study that passes every check.

    Args:
        choices: config group -> option: a folder of pipeline/conf/ and a file in it.
        conf: the folder of config.yaml and of the groups.
        path: the file to write.

    Raises:
        InputError: no such group or option, or the composed study has problems.
    """
    from dvc.utils.hydra import compose_and_dump

    from pipeline.files import atomic

    groups = {
        g.name: sorted(f.stem for f in g.glob("*.yaml")) for g in conf.iterdir() if g.is_dir()
    }
    problems = []
    for group, option in choices.items():
        if group not in groups:
            problems.append(
                Problem(
                    f"choice {group}={option}", group, "one of " + ", ".join(groups), "name one"
                )
            )
        elif option not in groups[group]:
            problems.append(
                Problem(
                    f"choice {group}={option}",
                    option,
                    "one of " + ", ".join(groups[group]),
                    f"name one of these, or write {conf / group / option}.yaml",
                )
            )
    if problems:
        raise InputError(*problems)
    with atomic(path) as temporary:
        composed = temporary.with_suffix(".yaml")  # the composer goes by the name's ending
        try:
            overrides = [f"{group}={option}" for group, option in choices.items()]
            compose_and_dump(composed, str(conf.resolve()), None, "config", str(conf), overrides)
            study = load(composed)
            composed.rename(temporary)
        finally:
            composed.unlink(missing_ok=True)
    return study


def switch(choices: Mapping[str, str], dry_run: bool) -> Study:
    """The study that `choices` name: the one in force, with its edits, if it is that one already.

    Args:
        choices: config group -> option, as for `compose`; none leaves the study in force.
        dry_run: params.yaml may not be written.

    Raises:
        InputError: what `load` and `compose` raise, or a dry run would have to change the study.
    """
    if not choices:
        return load()
    if set(choices) == {"study"}:
        values = _read(PARAMS) if PARAMS.exists() else None
        if isinstance(values, Mapping) and values.get("study") == choices["study"]:
            return check(values)
    if dry_run:
        others = [f"{group}={option}" for group, option in choices.items() if group != "study"]
        command = " ".join(["python -m pipeline study", choices.get("study", "NAME"), *others])
        raise InputError(
            Problem(
                "dry run of another study",
                ", ".join(f"{group}={option}" for group, option in choices.items()),
                "the study in force, for a dry run changes no file",
                f"run this first: {command}",
            )
        )
    return compose(choices)


def _read(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            Problem(
                str(path),
                str(error),
                "a readable UTF-8 file",
                "compose it: python -m pipeline study tiny",
            )
        ) from error
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(
            Problem(
                str(path), shorten(str(error)), "YAML", "mend the line, or compose the file again"
            )
        ) from error


def _cross_check(study: Study, where: str) -> list[Problem]:
    """What no single value shows: names used twice, references to nothing, bad lengths."""
    problems = []

    def add(what: str, got: str, expected: str, remedy: str) -> None:
        problems.append(Problem(f"{where}: {what}", got, expected, remedy))

    for section, entries in (("families", study.families), ("models", study.models)):
        seen: dict[str, str] = {}
        for key, entry in entries.items():
            if entry.name.endswith(".documents"):
                add(f"{section}.{key}.name", entry.name, "another ending", "it names another table")
            if not key.startswith(f"{study.study}-"):
                add(
                    f"{section}.{key}",
                    key,
                    f"a key that begins with {study.study}-",
                    "stages are named by these keys, and two studies must not share a stage",
                )
            if first := seen.get(entry.name.lower()):
                add(
                    f"{section}.{key}.name",
                    f"{entry.name}, as {section}.{first}",
                    "a name of its own (upper and lower case count as equal)",
                    "rename or remove one of the two",
                )
            seen.setdefault(entry.name.lower(), key)
    tasks = study.benchmarks.tasks
    unknown = [task for task in tasks if study.corpus and task not in GENERATED_TASKS]
    if unknown:
        add(
            "benchmarks.tasks",
            ", ".join(unknown),
            "of " + ", ".join(GENERATED_TASKS) + ", which the corpus comes with",
            "name some of these",
        )
    if repeated := sorted({task for task in tasks if tasks.count(task) > 1}):
        add("benchmarks.tasks", ", ".join(repeated) + " twice", "each once", "remove one")
    for key in study.corpus:
        if key != study.study:
            add(f"corpus.{key}", key, study.study, "call the corpus by the study's name")

    families = {family.name: family for family in study.families.values()}
    for key, model in study.models.items():
        if model.family not in families:
            add(
                f"models.{key}.family",
                model.family,
                "one of " + ", ".join(families),
                "name a family of this study, or add it under `families`",
            )
        elif (families[model.family].source == "records") != (model.input == "corpus"):
            add(
                f"models.{key}",
                f"input {model.input}, samples from {families[model.family].source}",
                "samples of the text that the model was trained on",
                "name a family whose samples are records of the corpus",
            )
    needing = [f"families.{k}" for k, f in study.families.items() if f.input == "corpus"]
    needing += [f"models.{k}" for k, m in study.models.items() if m.input == "corpus"]
    if needing and not study.corpus:
        add(
            ", ".join(needing),
            "input: corpus",
            f"a section corpus.{study.study}",
            "add the corpus, or take another source",
        )
    problems += _lengths(study, where)
    return problems


def _lengths(study: Study, where: str) -> list[Problem]:
    """Prefix and suffix are cut from one record, or one passage; and some record is memorized."""
    fetched = [
        Problem(
            f"{where}: families.{key}",
            f"prefix_length {family.prefix_length}, suffix_length {family.suffix_length}",
            f"at most {PILE_PREFIX} and {PILE_SUFFIX}, which is what a passage holds",
            "shorten them",
        )
        for key, family in study.families.items()
        if family.source == "pile"
        and (family.prefix_length > PILE_PREFIX or family.suffix_length > PILE_SUFFIX)
    ]
    never = [
        Problem(
            f"{where}: families.{key}.memorized_copies",
            str(family.memorized_copies),
            f"at most {max(corpus.records)}, the most that a record is planted",
            "lower it, or plant records as often",
        )
        for corpus in study.corpus.values()
        for key, family in study.families.items()
        if (family.memorized_copies or 0) > max(corpus.records)
    ]
    return (
        fetched
        + never
        + [
            Problem(
                f"{where}: families.{key}",
                f"prefix_length {family.prefix_length} + suffix_length {family.suffix_length}",
                f"at most {corpus.row_length}: the models' context, and the length of a record",
                "shorten one of the two",
            )
            for corpus in study.corpus.values()
            for key, family in study.families.items()
            if family.source == "records"
            and family.prefix_length + family.suffix_length > corpus.row_length
        ]
    )


def _named(entries: Mapping[str, Named], name: str, kind: str) -> Named:
    for entry in entries.values():
        if entry.name == name:
            return entry
    raise InputError(
        Problem(
            f"{kind} {name}",
            name,
            "one of " + ", ".join(entry.name for entry in entries.values()),
            f"name a {kind} of the study in {PARAMS}, or add it there",
        )
    )


def _problem(got: str, expected: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError(
        "study", "{got}", {"got": got, "expected": expected, "remedy": remedy}
    )


def _from_pydantic(error: ErrorDetails, where: str) -> Problem:
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    what = f"{where}: {path or 'the whole file'}"
    context = error.get("ctx", {})
    if error["type"] == "study":
        return Problem(what, context["got"], context["expected"], context["remedy"])
    if error["type"] == "extra_forbidden":
        known = _known_keys(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        return Problem(
            what,
            f"the unknown key {error['loc'][-1]}",
            "one of " + ", ".join(known),
            f"did you mean {near[0]}?" if near else "remove it",
        )
    if error["type"] == "missing":
        return Problem(
            what, "nothing", "a value", "add the key; pipeline/params.py says what it is"
        )
    return Problem(
        what,
        shorten(error["input"]),
        error["msg"].replace("String should match pattern", "text that matches the pattern"),
        "mend the value; pipeline/params.py says what it is",
    )


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys that the schema has at `location`, found by walking down its JSON form."""
    schema = Study.model_json_schema()
    node: dict[str, Any] = schema
    for part in location:
        by_pattern = list(node.get("patternProperties", {}).values())  # a mapping by `Key`
        node = node.get("properties", {}).get(part) or (by_pattern or [{}])[0]
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return list(node.get("properties", {}))
