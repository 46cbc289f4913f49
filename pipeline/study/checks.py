"""Checks across the values of a study: names used twice, missing references, bad lengths."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.checkpoints.schema import Continued, Gguf, Model, Training
from pipeline.interventions.interventions import sweep
from pipeline.measure.schema import FITTING
from pipeline.samples.schema import PASSAGE_LENGTHS, File, Records
from pipeline.study.loops import LOOPS, OPTIONAL, loops
from pipeline.study.schema import Study
from pipeline.tasks.schema import Benchmarks
from pipeline.workflow.errors import Problem, shorten


def cross_check(study: Study, where: str) -> list[Problem]:
    """The problems across several values: names used twice, missing references, bad lengths."""
    problems = []

    def add(what: str, got: str, expected: str, remedy: str) -> None:
        problems.append(Problem(f"{where}: {what}", got, expected, remedy))

    for section, entries in (
        ("families", study.families),
        ("models", study.models),
        ("theory", study.theory),
    ):
        seen: dict[str, str] = {}
        for key, entry in entries.items():
            if entry.name.endswith((".attention", ".documents", ".bounds", ".blocks")):
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
    if study.benchmarks:
        problems += _tasks(study, study.benchmarks, where)
    for section, keys in (("corpus", study.corpus), ("datasets", study.datasets)):
        for key in keys:
            if key != study.study:
                add(f"{section}.{key}", key, study.study, "call it by the study's name")

    families = {family.name: family for family in study.families.values()}
    if set(study.evaluation) != set(families):
        add(
            "evaluation",
            ", ".join(study.evaluation) or "nothing",
            "one section for each family: " + ", ".join(families),
            "name the sections as the families are named",
        )
    for key, model in study.models.items():
        if model.family not in families:
            add(
                f"models.{key}.family",
                model.family,
                "one of " + ", ".join(families),
                "name a family of this study, or add it under `families`",
            )
        elif isinstance(families[model.family].samples, Records) != bool(model.trained):
            add(
                f"models.{key}",
                f"a checkpoint from {model.checkpoint.source}, samples from "
                f"{families[model.family].samples.source}",
                "samples of the text that the model was trained on",
                "name a family whose samples are records of the corpus",
            )
        problems += _twin(study, f"{where}: models.{key}.twin", model)
        own = model.checkpoint.weights if isinstance(model.checkpoint, Gguf) else None
        for corpus in study.corpus.values() if model.trained else ():
            if corpus.weights != own:
                add(
                    f"models.{key}, weights",
                    own.package if own else "none",
                    f"those of the corpus: {corpus.weights.package if corpus.weights else 'none'}",
                    "name the same package, checksum and file in both places, or in neither",
                )
        if isinstance(made := model.checkpoint, Continued):
            problems += _continued(study, f"{where}: models.{key}.checkpoint", made)
        if isinstance(made, Training):
            try:
                sweep(made.n_blocks, study.interventions, made.n_heads)
            except ValueError as error:
                add(f"interventions, of models.{key}", str(error), *FITTING)
    needing = [f"families.{k}" for k, f in study.families.items() if isinstance(f.samples, Records)]
    needing += [f"models.{k}" for k, m in study.models.items() if m.trained]
    if needing and not study.corpus:
        add(
            ", ".join(needing),
            "samples of its records, or training on it",
            f"a section corpus.{study.study}",
            "add the corpus, or take another source",
        )
    problems += _runs(study, where)
    problems += _own(study, where)
    problems += _lengths(study, where)
    return problems


def derivation(study: Study, recorded: Mapping[str, object], where: str) -> list[Problem]:
    """A problem if what dvc.yaml loops over does not match params.yaml.

    Args:
        study: of params.yaml.
        recorded: what loops.yaml has.
        where: the name of params.yaml in errors.
    """
    derived = loops(study.model_dump())
    missing = [each for each in (*OPTIONAL, "theory") if each not in study.model_fields_set]
    if recorded == derived and not missing:  # DVC wants every section, be it null
        return []
    other = [group for group, entries in derived.items() if recorded.get(group) != entries]
    other += [f"no section {each}, not even null" for each in missing]
    return [
        Problem(
            f"{where}: {LOOPS}",
            "entries that do not match the other sections: "
            + (", ".join(other) or shorten(sorted(set(recorded) - set(derived)))),
            "the file that is derived from them",
            "derive it again: python -m pipeline study",
        )
    ]


def _tasks(study: Study, asked: Benchmarks, where: str) -> list[Problem]:
    """Problems of tasks: unknown ones, tasks named twice, limits of tasks that are not listed."""
    problems, tasks = [], asked.tasks
    if asked.folder:  # the stage that loads them looks into the folder
        known, whence = tuple(tasks), ""
    elif study.corpus:
        known = tuple(task for corpus in study.corpus.values() for task in corpus.tasks)
        whence = "the corpus comes with"
    else:
        known = tuple(task for section in study.datasets.values() for task in section)
        whence = f"datasets.{study.study} names datasets for"
    if unknown := [task for task in tasks if task not in known]:
        problems.append(
            Problem(
                f"{where}: benchmarks.tasks",
                ", ".join(unknown),
                f"of those that {whence}: {', '.join(known) or 'none'}",
                "name some of these, or add what is missing",
            )
        )
    if isinstance(asked.limit, dict) and (strange := [t for t in asked.limit if t not in tasks]):
        problems.append(
            Problem(
                f"{where}: benchmarks.limit",
                ", ".join(strange),
                "of " + ", ".join(tasks),
                "name tasks",
            )
        )
    if repeated := sorted({task for task in tasks if tasks.count(task) > 1}):
        problems.append(
            Problem(
                f"{where}: benchmarks.tasks",
                ", ".join(repeated) + " twice",
                "each once",
                "remove one",
            )
        )
    return problems


def _continued(study: Study, where: str, made: Continued) -> list[Problem]:
    """Problems of continued training: its base must be trained from scratch and have the block."""
    of = {m.name: m.checkpoint for m in study.models.values() if isinstance(m.checkpoint, Training)}
    base = of.get(made.base)
    if base is None:
        expected = "a model of this study with source: training; " + (
            ", ".join(of) or "there is none"
        )
        return [Problem(f"{where}.base", made.base, expected, "name one, or add it")]
    if made.block >= base.n_blocks:
        expected = f"0 to {base.n_blocks - 1}, as {made.base} has them"
        return [Problem(f"{where}.block", str(made.block), expected, "name one of these")]
    return []


def _twin(study: Study, where: str, model: Model) -> list[Problem]:
    """Problems of a model's twin: another model of its family, of the same shape where known."""
    if model.twin is None:
        return []
    others = {
        each.name: each.checkpoint
        for each in study.models.values()
        if each.family == model.family and each.name != model.name
    }
    if model.twin not in others:
        expected = "another model of its family: " + (", ".join(others) or "there is none")
        return [Problem(where, model.twin, expected, "name one, or add it")]
    own, twin = model.checkpoint, others[model.twin]
    if isinstance(own, Training) and isinstance(twin, Training) and own.n_blocks != twin.n_blocks:
        got = f"{model.twin}, of {twin.n_blocks} blocks"
        return [Problem(where, got, f"a model of {own.n_blocks} blocks", "name one of this shape")]
    return []


def _runs(study: Study, where: str) -> list[Problem]:
    """Problems of training runs: a step or a checkpoint twice, two families, two trainings."""
    problems = []
    runs: dict[str, list[Model]] = {}
    for key, model in study.models.items():
        others = runs.setdefault(model.run, []) if model.run else []
        for other in others:
            both = model.checkpoint, other.checkpoint
            trained, same = any(isinstance(each, Training) for each in both), both[0] == both[1]
            what = f"{where}: models.{key}, of the run {model.run} as {other.name}"
            found = [
                Problem(what, got, expected, "correct it, or name another run")
                for wrong, got, expected in (
                    (model.step == other.step, f"step {model.step}, too", "another step"),
                    (model.family != other.family, f"family {model.family}", other.family),
                    (trained and not same, "another checkpoint", "the same training"),
                    (same and not trained, "the same checkpoint", "that of its own step"),
                )
                if wrong
            ]
            problems += found
            if found:
                break
        others.append(model)
    return problems


def _own(study: Study, where: str) -> list[Problem]:
    """Problems of users' files: their tokenizer must be of a model that completes the samples."""
    problems = []
    for key, family in study.families.items():
        of = [model.name for model in study.models.values() if model.family == family.name]
        if isinstance(family.samples, File) and family.samples.tokenizer not in (None, *of):
            problems.append(
                Problem(
                    f"{where}: families.{key}.samples.tokenizer",
                    str(family.samples.tokenizer),
                    "null, or a model of this family: " + (", ".join(of) or "there is none"),
                    "name the model whose tokenizer cuts the text",
                )
            )
    return problems


def _lengths(study: Study, where: str) -> list[Problem]:
    """Prefix and suffix are cut from one record, or one passage; some record is memorized; what is
    written fits into the context.
    """
    fetched = [
        Problem(
            f"{where}: families.{key}",
            f"prefix_length {family.prefix_length}, suffix_length {family.suffix_length}",
            f"at most {most[0]} and {most[1]}, the lengths of a passage",
            "shorten them",
        )
        for key, family in study.families.items()
        if (most := PASSAGE_LENGTHS.get(family.samples.source))
        and (family.prefix_length > most[0] or family.suffix_length > most[1])
    ]
    never = [
        Problem(
            f"{where}: families.{key}.samples.memorized_copies",
            str(family.samples.memorized_copies),
            f"at most {max(corpus.records)}, the largest number of copies of a record",
            "lower it, or plant more copies of some records",
        )
        for corpus in study.corpus.values()
        for key, family in study.families.items()
        if isinstance(family.samples, Records)
        and family.samples.memorized_copies > max(corpus.records)
    ]
    asked = study.generations.new_tokens if study.generations else 0
    trained = [key for key, model in study.models.items() if model.checkpoint.source == "training"]
    unwritten = [
        Problem(
            f"{where}: generations.new_tokens",
            str(asked),
            f"less than {corpus.row_length}, the context of {', '.join(trained)}",
            "lower it",
        )
        for corpus in study.corpus.values()
        if trained and asked >= corpus.row_length
    ]
    return (
        fetched
        + never
        + unwritten
        + [
            Problem(
                f"{where}: families.{key}",
                f"prefix_length {family.prefix_length} + suffix_length {family.suffix_length}",
                f"at most {corpus.row_length}: the models' context, and the length of a record",
                "shorten one of the two",
            )
            for corpus in study.corpus.values()
            for key, family in study.families.items()
            if family.samples.source == "records"
            and family.prefix_length + family.suffix_length > corpus.row_length
        ]
    )
