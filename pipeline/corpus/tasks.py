"""Five held-out benchmarks of the generated world, in lm-eval's own format.

The documents have the columns of ARC-Easy, HellaSwag, PIQA, LAMBADA and wikitext. Every choice of
an item is as likely to be the right one as any other for whoever does not read the context: the
wrong ones come from the same context or the same list, so the stated chance level is true.

The ``data_files`` of a YAML are relative to its own folder, so that the folder can move as a whole:
load the tasks with `pipeline.tasks.loading.load_tasks`.
"""

import itertools
import json
import random
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from ruamel.yaml import YAML

from pipeline.corpus.words import WORDS, text_of
from pipeline.corpus.world import (
    CRAFTS,
    RELATIONS,
    VERBS,
    Side,
    article,
    craft,
    errand,
    question,
    scene,
    values,
)
from pipeline.workflow.errors import bad_input

Document = Mapping[str, Any]

TRIES = 100
"""At most this many times the wanted number of documents are tried."""
CONFIGS: dict[str, dict[str, Any]] = YAML(typ="safe").load(text_of("tasks.yaml"))
"""Task -> the fields of lm-eval's YAML that differ between the tasks."""


@dataclass(frozen=True)
class Item:
    """The part of a document that a scorer sees: a context and its possible continuations.

    The context is empty where the whole continuation is scored. Each choice follows it after one
    space; it is a single one where nothing is chosen. `answer` is the index of the right one.
    """

    context: str
    choices: Sequence[str]
    answer: int


@dataclass(frozen=True)
class Task:
    """One benchmark: how its documents are made, and what lm-eval does with them (`CONFIGS`).

    The documents are endless, from what they are made of and a random number generator; duplicates
    are left out by whoever chooses among them.
    """

    documents: Callable[..., Iterator[Document]]
    config: Mapping[str, Any]

    def item(self, document: Document) -> Item:
        """What a scorer sees of one document: lm-eval's templates, filled in as lm-eval does."""
        context, target = (
            _filled(self.config[field], document) for field in ("doc_to_text", "doc_to_target")
        )
        if choices := self.config.get("doc_to_choice"):
            texts = _filled(choices, document)
            listed = literal_eval(texts) if isinstance(texts, str) else texts
            return Item(context, listed, int(target))
        return Item(context, [target.removeprefix(" ")], 0)


def _filled(template: str, document: Document) -> Any:
    """A field of the document if the template is its name; else the template's text."""
    return document[template] if template in document else _template(template).render(document)


_template = cache(Environment(autoescape=False).from_string)  # noqa: S701 - text, no page


def make_documents(
    tasks: Mapping[str, Task],
    wanted: Mapping[str, int],
    seed: int,
    *made_of: object,
    fits: Callable[[Item], bool] = lambda _: True,
) -> dict[str, list[Document]]:
    """The documents of all tasks, as many as are wanted, at least 1, all different within a task.

    `made_of` is what the tasks make them of; `fits` says whether an item is short enough to be
    scored.

    Raises:
        InputError: next to no item is short enough, or there are not so many different ones.
    """
    made: dict[str, list[Document]] = {}
    for name, task in tasks.items():
        chosen: dict[str, Document] = {}
        rng = random.Random(f"{name} {seed}")  # noqa: S311 - reproducible, not secret
        source = task.documents(*made_of, rng)
        for document in itertools.islice(source, TRIES * wanted[name]):
            item = task.item(document)
            if fits(item):
                chosen.setdefault(item.context or item.choices[0], document)
            if len(chosen) == wanted[name]:
                break
        if len(chosen) < wanted[name]:
            raise bad_input(
                f"corpus: task_items, vocabulary and row_length ({name})",
                f"{len(chosen)} different items that fit, of {TRIES * wanted[name]} tried",
                f"{wanted[name]}",
                "ask for fewer items, or enlarge the vocabulary or the rows",
            )
        made[name] = list(chosen.values())
    return made


def write_tasks(
    folder: Path,
    documents: Mapping[str, Sequence[Document]],
    tasks: Mapping[str, Task],
    blind: Mapping[str, Mapping[str, float]],
) -> None:
    """Write NAME.yaml and NAME.jsonl of each task into a folder, which exists.

    The metadata of a task state its chance, which is what the best scorer without attention reaches
    (`blind`, see `baselines`), and the field of its documents that holds their category.
    """
    yaml = YAML()
    for name, task in tasks.items():
        metadata: dict[str, object] = {"version": 1.0}
        if task.config["output_type"] != "loglikelihood_rolling":  # else a perplexity
            metadata["chance"] = max(blind[name].values())
        if "category" in documents[name][0]:
            metadata["category"] = "category"
        config = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
            "test_split": "test",
            **task.config,
            "metadata": metadata,
        }
        with (folder / f"{name}.yaml").open("w", encoding="utf-8") as file:
            yaml.dump(config, file)
        lines = "".join(json.dumps(document) + "\n" for document in documents[name])
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def held_out_animals(count: int) -> int:
    """How many animals must be held out for `count` questions: each is asked about once a way."""
    return -(-count // len(RELATIONS))


def _tiny_arc_easy(side: Side, rng: random.Random) -> Iterator[Document]:
    """ARC-Easy: apply a rule of the world to an animal that never occurred."""
    for index, (relation, animal) in enumerate(itertools.product(RELATIONS, side.animals)):
        right = animal.value(relation)
        wrong = [value for value in values(relation) if value != right]
        texts = _shuffled(rng, [right, *rng.sample(wrong, 3)])
        yield {
            "id": f"tiny_{index}",
            "question": question(animal, relation, rng),
            "choices": {"text": [f"{text} ." for text in texts], "label": list("ABCD")},
            "answerKey": "ABCD"[texts.index(right)],
            "category": right,
        }


def _tiny_hellaswag(side: Side, rng: random.Random) -> Iterator[Document]:
    """HellaSwag: what comes next; the wrong endings fit tools that are named, but not taken."""
    for template in itertools.cycle(range(len(WORDS["scenes"]))):
        opening, deeds = scene(side, 4, rng, template)
        endings = _shuffled(rng, deeds)
        yield {
            "ctx": opening,
            "endings": endings,
            "label": endings.index(deeds[0]),
            "category": f"template {template}",
        }


def _tiny_piqa(side: Side, rng: random.Random) -> Iterator[Document]:
    """PIQA: a means to an end; the wrong means serves another end, or another material."""
    of_material = {
        material: [thing for own, thing in side.materials if own == material] for material in CRAFTS
    }
    for material, verb in itertools.cycle(itertools.product(CRAFTS, VERBS)):
        thing = rng.choice(of_material[material])
        right = CRAFTS[material][verb]
        if rng.random() < 0.5:
            wrong = CRAFTS[rng.choice([other for other in CRAFTS if other != material])][verb]
        else:
            wrong = CRAFTS[material][rng.choice([other for other in VERBS if other != verb])]
        first, second = _shuffled(rng, [right, wrong])
        yield {
            "goal": craft(material, thing, verb, rng),
            "sol1": f"use the {first} .",
            "sol2": f"use the {second} .",
            "label": int(second == right),
            "category": f"{verb} {material}",
        }


def _tiny_lambada_openai(side: Side, rng: random.Random) -> Iterator[Document]:
    """LAMBADA: the last word, which only the context tells."""
    for template in itertools.cycle(range(len(WORDS["errands"]))):
        yield {"text": errand(side, rng, template)[0], "category": f"template {template}"}


def _tiny_wikitext(side: Side, rng: random.Random) -> Iterator[Document]:
    """wikitext: articles about animals that never occurred."""
    while True:
        for animal in side.animals:
            yield {"page": article(animal, rng)}


def tasks_of(*documents: Callable[..., Iterator[Document]]) -> dict[str, Task]:
    """Functions that are called as their task -> the tasks."""
    made = {each.__name__.removeprefix("_"): each for each in documents}
    return {name: Task(each, CONFIGS[name]) for name, each in made.items()}


TASKS = tasks_of(_tiny_arc_easy, _tiny_hellaswag, _tiny_piqa, _tiny_lambada_openai, _tiny_wikitext)


def _shuffled(rng: random.Random, values: Sequence[str]) -> list[str]:
    return rng.sample(values, len(values))
