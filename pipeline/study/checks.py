"""Checks across the values of a study: names used twice, missing references, bad lengths."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pipeline.checkpoints.schema import Continued, Gguf, Training
from pipeline.interventions.interventions import OWN_EDITS, is_own, sweep
from pipeline.localization.schema import OWN_SCORERS
from pipeline.measure.schema import FITTING
from pipeline.models.grids import BLOCKS, GROUPS, HEADS, NEURON_GROUPS
from pipeline.samples.schema import PASSAGE_LENGTHS, File, Records
from pipeline.study.schema import Study
from pipeline.workflow.errors import InputError, Problem, bad_input

Found = tuple[str, str, str, str]
"""A problem: what, got, expected, remedy."""


def cross_check(study: Study, where: str) -> list[Problem]:
    """The problems across several values: names used twice, missing references, bad lengths."""
    checks = (
        _names,
        _keys,
        _tasks,
        _families,
        _trained,
        _edits,
        _mitigations,
        _localization,
        _continued,
        _twins,
        _runs,
        _lengths,
    )
    return [Problem(f"{where}: {what}", *rest) for check in checks for what, *rest in check(study)]


def require_own_metrics(study: Study) -> None:
    """Raise if a metric of `mine/metrics.py`, which is executed, fails on made-up samples."""
    file = Path("mine/metrics.py")
    if not file.is_file():
        return
    what, expected = str(file), "a file that can be loaded, with METRICS, a list of Metric(…)"
    try:
        import numpy as np
        import polars as pl

        from pipeline.measure import metrics

        length = min((family.suffix_length for family in study.families.values()), default=32)
        ids = np.random.default_rng(0).integers(1, 99, (2, 3, length), np.int32)
        nats = ids / np.float32(9)
        for each in getattr(metrics, "OWN", ()):
            what = f"{file}: {each.name}, on made-up suffixes of {length} tokens"
            expected = f"(V, N) values of {each.dtype}, {each.least:.3g} to {each.most:.3g}"
            texts = ["text"] * 3 if each.needs == "text" else None
            made = metrics.Completed(ids[0], ids, ids, nats, -nats, -nats, ids, nats, texts)
            values = each.function(made).astype(metrics._TYPES[each.dtype])
            if values.shape != (2, 3):
                raise ValueError(f"shape {values.shape} for 2 interventions and 3 samples")
            column = pl.DataFrame({each.name: values.ravel()})
            if len(unfit := column.filter(~each.possible())):
                raise ValueError(f"the value {unfit.item(0, 0)}")
    except InputError:
        raise
    except Exception as error:  # whatever a user's code raises
        got, remedy = (
            f"{type(error).__name__}: {error}",
            "correct it; docs/your-own.md has an example",
        )
        raise bad_input(what, got, expected, remedy) from error


def _edits(study: Study) -> Iterator[Found]:
    """Own edits exist; their sources, and the reference of windows, are models of the study."""
    names = [model.name for model in study.models.values()]
    for number, line in enumerate(study.interventions):
        if line.source is not None and line.source not in names:
            what = f"interventions.{number}.source"
            yield what, line.source, "one of " + ", ".join(names), "name a model of this study"
        what = f"interventions.{number}.edit"
        if isinstance(line.edit, str) and is_own(line.edit) and (got := missing(what, line.edit)):
            yield got
    reference = study.windows.reference if study.windows else None
    if reference and reference not in names:
        yield "windows.reference", reference, "one of " + ", ".join(names), "name a model"


def missing(what: str, own: str, folder: Path = OWN_EDITS, page: str = "python") -> Found | None:
    """What is missing of ``FOLDER/FILE.py:FUNCTION``, a file that is read, not run; or None."""
    path, _, function = own.partition(":")
    try:
        if not Path(path).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"a link that leaves {folder}/")
        tree = ast.parse(Path(path).read_bytes(), path)
        stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if function in {getattr(node, "name", None) for node in tree.body} | stored:
            return None
        got = f"{path} without {function}"
    except (OSError, SyntaxError, ValueError) as error:
        got = f"{path}: {error}"
    expected = f"a function of a file in {folder}/, beside params.yaml"
    return what, got, expected, f"write it; docs/{page}.md has an example"


def _names(study: Study) -> Iterator[Found]:
    """Names and keys of entries: each once, and none that another file has."""
    for section in ("families", "models", "theory"):
        seen: dict[str, str] = {}
        for key, entry in getattr(study, section).items():
            what, name = f"{section}.{key}.name", entry.name
            if name.endswith((".attention", ".documents", ".bounds", ".blocks", ".recited")):
                yield what, name, "another ending", "it names another table"
            if not key.startswith(f"{study.study}-"):
                yield (
                    f"{section}.{key}",
                    key,
                    f"a key that begins with {study.study}-",
                    "stages are named by these keys, and two studies must not share a stage",
                )
            if first := seen.get(name.lower()):
                yield (
                    what,
                    f"{name}, as {section}.{first}",
                    "a name of its own (upper and lower case count as equal)",
                    "rename or remove one of the two",
                )
            seen.setdefault(name.lower(), key)


def _keys(study: Study) -> Iterator[Found]:
    """Sections that are called by the study, or by its families."""
    for section in ("corpus", "datasets"):
        for key in getattr(study, section):
            if key != study.study:
                yield f"{section}.{key}", key, study.study, "call it by the study's name"
    families = [family.name for family in study.families.values()]
    if set(study.evaluation) != set(families):
        yield (
            "evaluation",
            ", ".join(study.evaluation) or "nothing",
            "one section for each family: " + ", ".join(families),
            "name the sections as the families are named",
        )


def _tasks(study: Study) -> Iterator[Found]:
    """Unknown tasks, tasks named twice, limits of tasks that are not listed."""
    asked = study.benchmarks
    if asked is None:
        return
    tasks = asked.tasks
    if asked.folder:  # the stage that loads them looks into the folder
        known, whence = list(tasks), ""
    elif study.corpus:
        known = [task for corpus in study.corpus.values() for task in corpus.tasks]
        whence = "the corpus comes with"
    else:
        known = [task for section in study.datasets.values() for task in section]
        whence = f"datasets.{study.study} names datasets for"
    what = "benchmarks.tasks"
    if unknown := [task for task in tasks if task not in known]:
        expected = f"of those that {whence}: {', '.join(known) or 'none'}"
        yield what, ", ".join(unknown), expected, "name some of these, or add what is missing"
    if isinstance(asked.limit, dict) and (strange := [t for t in asked.limit if t not in tasks]):
        yield "benchmarks.limit", ", ".join(strange), "of " + ", ".join(tasks), "name tasks"
    if repeated := sorted({task for task in tasks if tasks.count(task) > 1}):
        yield what, ", ".join(repeated) + " twice", "each once", "remove one"


def _mitigations(study: Study) -> Iterator[Found]:
    """The model that is to forget learned the records of a corpus, and has a twin."""
    if study.mitigations is None:
        return
    named = [m for m in study.models.values() if m.name == study.mitigations.model]
    if not any(m.twin and isinstance(m.checkpoint, (Training, Gguf)) for m in named):
        yield (
            "mitigations.model",
            study.mitigations.model,
            "a model with source: training or gguf, and a twin",
            "name one, or add a twin that is trained without what is to be forgotten",
        )


def _localization(study: Study) -> Iterator[Found]:
    """Bases are trained here, alike but for the seed; truths have places; scorers exist."""
    asked = study.localization
    if asked is None:
        return
    of = {m.name: m for m in study.models.values() if isinstance(m.checkpoint, Training)}
    for base, names in asked.bases.items():
        what = f"localization.bases.{base}"
        if strange := [name for name in names if name not in of or of[name].run]:
            expected = "models with source: training, trained to the end: " + ", ".join(of)
            yield what, ", ".join(strange), expected, "name some of these, or add one"
            continue
        recipes = [of[name].checkpoint.model_dump() for name in names]
        seeds = {recipe.pop("seed") for recipe in recipes}
        if any(recipe != recipes[0] for recipe in recipes) or len(seeds) < len(names):
            expected = "models that differ in their seeds, and in nothing else of their training"
            yield what, ", ".join(names), expected, "make another base of those that differ"
        made = recipes[0]
        in_block = {HEADS: made["n_heads"], GROUPS: NEURON_GROUPS, BLOCKS: 1}
        for kind, truth in asked.truths.items():
            count = made["n_blocks"] * in_block[truth.grid]
            sets = count if truth.spread < count else 1  # of places, no two models alike
            if truth.spread > count or truth.models > sets:
                got = f"{truth.models} models, spread {truth.spread}"
                expected = f"at most {count} each, the places of {base}; of all, one model"
                yield f"localization.truths.{kind}", got, expected, "lower them"
    for number, name in enumerate(asked.scorers):
        what = f"localization.scorers.{number}"
        if problem := missing(what, name, OWN_SCORERS, "localization"):
            yield problem


def _families(study: Study) -> Iterator[Found]:
    """Families of models that are not there; samples of another source than the model's text."""
    families = {family.name: family for family in study.families.values()}
    for key, model in study.models.items():
        if model.family not in families:
            yield (
                f"models.{key}.family",
                model.family,
                "one of " + ", ".join(families),
                "name a family of this study, or add it under `families`",
            )
        elif isinstance(families[model.family].samples, Records) != bool(model.trained):
            yield (
                f"models.{key}",
                f"a checkpoint from {model.checkpoint.source}, samples from "
                f"{families[model.family].samples.source}",
                "samples of the text that the model was trained on",
                "name a family whose samples are records of the corpus",
            )
    for key, family in study.families.items():
        of = [model.name for model in study.models.values() if model.family == family.name]
        if isinstance(family.samples, File) and family.samples.tokenizer not in (None, *of):
            yield (
                f"families.{key}.samples.tokenizer",
                str(family.samples.tokenizer),
                "null, or a model of this family: " + (", ".join(of) or "there is none"),
                "name the model whose tokenizer cuts the text",
            )


def _trained(study: Study) -> Iterator[Found]:
    """A corpus for all that needs one, of the model's own weights; interventions that fit."""
    needing = [f"families.{k}" for k, f in study.families.items() if isinstance(f.samples, Records)]
    needing += [f"models.{k}" for k, m in study.models.items() if m.trained]
    if needing and not study.corpus:
        yield (
            ", ".join(needing),
            "samples of its records, or training on it",
            f"a section corpus.{study.study}",
            "add the corpus, or take another source",
        )
    for key, model in study.models.items():
        made = model.checkpoint
        own = made.weights if isinstance(made, Gguf) else None
        for corpus in study.corpus.values() if model.trained else ():
            if corpus.weights != own:
                yield (
                    f"models.{key}, weights",
                    own.package if own else "none",
                    f"those of the corpus: {corpus.weights.package if corpus.weights else 'none'}",
                    "name the same package, checksum and file in both places, or in neither",
                )
        if isinstance(made, Training):
            try:
                sweep(made.n_blocks, study.interventions, made.n_heads)
            except ValueError as error:
                yield (f"interventions, of models.{key}", str(error), *FITTING)


def _continued(study: Study) -> Iterator[Found]:
    """Continued training: its base must be trained from scratch and have the block."""
    of = {m.name: m.checkpoint for m in study.models.values() if isinstance(m.checkpoint, Training)}
    for key, model in study.models.items():
        what, made = f"models.{key}.checkpoint", model.checkpoint
        if not isinstance(made, Continued):
            continue
        if made.base not in of:
            expected = "a model of this study with source: training; "
            expected += ", ".join(of) or "there is none"
            yield f"{what}.base", made.base, expected, "name one, or add it"
        elif made.block >= of[made.base].n_blocks:
            expected = f"0 to {of[made.base].n_blocks - 1}, as {made.base} has them"
            yield f"{what}.block", str(made.block), expected, "name one of these"


def _twins(study: Study) -> Iterator[Found]:
    """The twin of a model is another one of its family, of the same shape where that is known."""
    for key, model in study.models.items():
        if model.twin is None:
            continue
        what, own = f"models.{key}.twin", model.checkpoint
        others = {
            each.name: each.checkpoint
            for each in study.models.values()
            if each.family == model.family and each.name != model.name
        }
        if (twin := others.get(model.twin)) is None:
            expected = "another model of its family: " + (", ".join(others) or "there is none")
            yield what, model.twin, expected, "name one, or add it"
            continue
        blocks = [each.n_blocks for each in (own, twin) if isinstance(each, Training)]
        if len(set(blocks)) == 2:
            got = f"{model.twin}, of {blocks[1]} blocks"
            yield what, got, f"a model of {blocks[0]} blocks", "name one of this shape"


def _runs(study: Study) -> Iterator[Found]:
    """Training runs: a step or a checkpoint twice, two families, two trainings."""
    models = [(key, model) for key, model in study.models.items() if model.run]
    for at, (key, model) in enumerate(models):
        for _, other in models[:at]:
            both = model.checkpoint, other.checkpoint
            trained, same = any(isinstance(each, Training) for each in both), both[0] == both[1]
            wrong = {
                (f"step {model.step}, too", "another step"): model.step == other.step,
                (f"family {model.family}", other.family): model.family != other.family,
                ("another checkpoint", "the same training"): trained and not same,
                ("the same checkpoint", "that of its own step"): same and not trained,
            }
            found = [words for words, is_wrong in wrong.items() if is_wrong]
            if model.run == other.run and found:
                what = f"models.{key}, of the run {model.run} as {other.name}"
                for got, expected in found:
                    yield what, got, expected, "correct it, or name another run"
                break


def _lengths(study: Study) -> Iterator[Found]:
    """Prefix and suffix are cut from one record, or one passage; some record is memorized; what is
    written fits into the context.
    """
    for key, family in study.families.items():
        prefix, suffix, source = family.prefix_length, family.suffix_length, family.samples
        longest = PASSAGE_LENGTHS.get(source.source)
        if longest and (prefix > longest[0] or suffix > longest[1]):
            yield (
                f"families.{key}",
                f"prefix_length {prefix}, suffix_length {suffix}",
                f"at most {longest[0]} and {longest[1]}, the lengths of a passage",
                "shorten them",
            )
        for corpus in study.corpus.values():
            if not isinstance(source, Records):
                continue
            if source.memorized_copies > max(corpus.records):
                yield (
                    f"families.{key}.samples.memorized_copies",
                    str(source.memorized_copies),
                    f"at most {max(corpus.records)}, the largest number of copies of a record",
                    "lower it, or plant more copies of some records",
                )
            if prefix + suffix > corpus.row_length:
                yield (
                    f"families.{key}",
                    f"prefix_length {prefix} + suffix_length {suffix}",
                    f"at most {corpus.row_length}: the models' context, and the length of a record",
                    "shorten one of the two",
                )
    asked = study.generations.new_tokens if study.generations else 0
    trained = [key for key, m in study.models.items() if isinstance(m.checkpoint, Training)]
    for corpus in study.corpus.values():
        if trained and asked >= corpus.row_length:
            expected = f"less than {corpus.row_length}, the context of {', '.join(trained)}"
            yield "generations.new_tokens", str(asked), expected, "lower it"
