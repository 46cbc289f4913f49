"""A small world, generated from a seed: its rules, its documents, and what is held out of them.

Five kinds of document, one for each benchmark (pipeline/corpus/tasks.py): question (ARC-Easy),
scene (HellaSwag), craft (PIQA), errand (LAMBADA) and article (wikitext). The rules can be learned
from the documents; what the benchmarks ask can only be told by applying a rule to something that
never occurred: an animal, a worker with a tool, an object of a material, a thing at a place.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.corpus.words import WORDS

FOODS: Mapping[str, str] = WORDS["foods"]
DEEDS: Mapping[str, str] = WORDS["deeds"]
CRAFTS: Mapping[str, Mapping[str, str]] = WORDS["crafts"]
VERBS: Sequence[str] = WORDS["verbs"]
RELATIONS = ("cover", "movement", "young", "food")
KINDS = {
    kind: dict(zip(RELATIONS[:3], words, strict=True)) for kind, words in WORDS["kinds"].items()
}
"""Kind of animal -> relation -> what all animals of the kind have in common."""

Pairs = list[tuple[str, str]]

PEOPLE = 24
ANIMALS = 400
HELD_OUT = 4
"""One of so many pairs (person and person, thing and place, …) is kept for the benchmarks."""
HELD_OUT_TOOLS = 5
"""So many tools of each person are kept for the benchmarks; a scene shows four of them."""


def values(relation: str) -> list[str]:
    """All that the rules of the world say of some animal; `relation` is one of RELATIONS."""
    if relation == "food":
        return list(FOODS.values())
    return [common[relation] for common in KINDS.values()]


@dataclass(frozen=True)
class Animal:
    """An animal: a name, a kind, a home, looks."""

    name: str
    kind: str
    home: str
    colour: str
    size: str

    def value(self, relation: str) -> str:
        """What the rules of the world say of this animal; `relation` is one of RELATIONS."""
        return FOODS[self.home] if relation == "food" else KINDS[self.kind][relation]


@dataclass(frozen=True)
class Side:
    """What one side of the world is made of: the side that is trained on, or the one held out.

    The pairs of the two sides are disjoint, and so are the animals.
    """

    animals: Sequence[Animal]
    owners: Pairs
    """(person, tool)"""
    acquaintances: Pairs
    """(person, person)"""
    materials: Pairs
    """(material, object)"""
    finds: Pairs
    """(thing, place)"""


@dataclass(frozen=True)
class World:
    """The two sides of a world."""

    training: Side
    held_out: Side


def make_world(seed: int, held_out_animals: int) -> World:
    """Draw names and looks, and decide what is held out.

    No training document mentions the held-out animals, at least 1.
    """
    rng = random.Random(f"world {seed}")  # noqa: S311 - reproducible, not secret
    names = invent_words(rng, PEOPLE + ANIMALS + held_out_animals, syllables=2)
    people = names[:PEOPLE]
    kinds, homes = tuple(KINDS), tuple(FOODS)
    animals = [
        # kinds and homes in turn, so that on both sides each answer is equally frequent
        Animal(
            name,
            kinds[i % len(kinds)],
            homes[i // len(kinds) % len(homes)],
            rng.choice(WORDS["colours"]),
            rng.choice(WORDS["sizes"]),
        )
        for i, name in enumerate(names[PEOPLE:])
    ]
    owners = _part_tools(rng, people)
    acquaintances = _part(rng, itertools.permutations(people, 2))
    of_material = [_part(rng, ((each, thing) for thing in WORDS["objects"])) for each in CRAFTS]
    materials = [list(itertools.chain(*side)) for side in zip(*of_material, strict=True)]
    finds = _part(rng, itertools.product(WORDS["things"], WORDS["places"]))
    parted = animals[held_out_animals:], animals[:held_out_animals]
    sides = zip(parted, owners, acquaintances, materials, finds, strict=True)
    return World(*(Side(*side) for side in sides))


def invent_words(rng: random.Random, count: int, syllables: int) -> list[str]:
    """`count` different pronounceable words, such as ``bozun``.

    Words of different `syllables` never coincide: they have as many vowels.
    """
    words: dict[str, None] = {}
    while len(words) < count:
        stem = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables))
        words[stem + rng.choice(("", "n", "r", "l", "s"))] = None
    return list(words)


def document(side: Side, rng: random.Random) -> str:
    """One document, of a kind drawn by the shares in `_SHARES`."""
    kinds, shares = zip(*_SHARES.items(), strict=True)
    (kind,) = rng.choices(kinds, shares)
    return str(kind(side, rng))


def article(animal: Animal, rng: random.Random) -> str:
    """A heading and five or six sentences about one animal, in any order."""
    sentences = [
        rng.choice(("it lives in the {} .", "its home is the {} .")).format(animal.home),
        f"it is {animal.size} and {animal.colour} .",
    ]
    for relation in RELATIONS:
        statement = rng.choice(WORDS["statements"][relation])
        sentences.append(statement.format(animal.name, animal.value(relation)))
    rng.shuffle(sentences)
    body = " ".join(sentences[: rng.randint(5, len(sentences))])
    return f"= {animal.name} =\n the {animal.name} is a {animal.kind} . {body}"


def question(animal: Animal, relation: str, rng: random.Random) -> str:
    """A question that can be answered from the clue that it opens with, and a rule."""
    clue = (
        f"the {animal.name} lives in the {animal.home} ."
        if relation == "food"
        else f"the {animal.name} is a {animal.kind} ."
    )
    return f"{clue} {rng.choice(WORDS['questions'][relation]).format(animal.name)}"


def scene(
    side: Side, count: int, rng: random.Random, template: int | None = None
) -> tuple[str, list[str]]:
    """`count` tools lie about, 2 to 4; someone takes one, and does what it is for.

    All are tools that the actor may take on this side of the world, so that who the actor is says
    nothing about which is taken. Some templates name another of the tools, which is not taken.

    Returns:
        What lies where and who takes what, up to the taker's name; and what each of the tools is
        for, first the one that was taken.
    """
    actor, _ = rng.choice(side.owners)
    tools = rng.sample([tool for person, tool in side.owners if person == actor], count)
    lying = " , ".join(f"the {tool}" for tool in rng.sample(tools, count))
    number = rng.randrange(len(WORDS["scenes"])) if template is None else template
    opening = WORDS["scenes"][number].format(
        lying=lying,
        actor=actor,
        tool=tools[0],
        other=tools[1],
        place=rng.choice(WORDS["places"]),
        look=rng.choice(WORDS["adjectives"]),
    )
    return opening, [f"{DEEDS[tool]} ." for tool in tools]


def craft(material: str, thing: str, verb: str, rng: random.Random) -> str:
    """A goal, such as ``cut the old wooden door .``"""
    return f"{verb} the {rng.choice(WORDS['adjectives'])} {material} {thing} ."


def errand(side: Side, rng: random.Random, template: int | None = None) -> tuple[str, str]:
    """A short story about two people, a thing and a place: it is lost, found, wanted or given.

    Returns:
        The story, which ends, without a full stop, in a word that only the story itself tells; and
        a sentence that names the same people and the same thing again.
    """
    first, second = rng.choice(side.acquaintances)
    thing, place = rng.choice(side.finds)
    elsewhere = rng.choice([other for other in WORDS["places"] if other != place])
    number = rng.randrange(len(WORDS["errands"])) if template is None else template
    story = WORDS["errands"][number].format(
        first=first, second=second, thing=thing, place=place, elsewhere=elsewhere
    )
    return story, f"then {first} showed {second} the {thing} ."


def _article(side: Side, rng: random.Random) -> str:
    return article(rng.choice(side.animals), rng)


def _question(side: Side, rng: random.Random) -> str:
    animal, relation = rng.choice(side.animals), rng.choice(RELATIONS)
    asked = question(animal, relation, rng)
    return f"question : {asked}\n answer : {animal.value(relation)} ."


def _scene(side: Side, rng: random.Random) -> str:
    opening, deeds = scene(side, rng.randint(2, 4), rng)
    return f"{opening} {deeds[0]}"


def _craft(side: Side, rng: random.Random) -> str:
    material, thing = rng.choice(side.materials)
    verb = rng.choice(VERBS)
    goal = craft(material, thing, verb, rng)
    return f"goal : {goal}\n solution : use the {CRAFTS[material][verb]} ."


def _errand(side: Side, rng: random.Random) -> str:
    return " . ".join(errand(side, rng))


_SHARES: dict[Callable[[Side, random.Random], str], float] = {
    _article: 0.22,
    _question: 0.2,
    _scene: 0.28,
    _craft: 0.1,
    _errand: 0.2,
}


def _part(rng: random.Random, pairs: Iterable[tuple[str, str]]) -> tuple[Pairs, Pairs]:
    """Most of `pairs`, and one of HELD_OUT of them."""
    shuffled = list(pairs)
    rng.shuffle(shuffled)
    kept = len(shuffled) // HELD_OUT
    return shuffled[kept:], shuffled[:kept]


def _part_tools(rng: random.Random, people: Sequence[str]) -> tuple[Pairs, Pairs]:
    """All (person, tool), parted so that each person has tools on either side."""
    training, held_out = Pairs(), Pairs()
    for person in people:
        own = [(person, tool) for tool in rng.sample(tuple(DEEDS), len(DEEDS))]
        training += own[HELD_OUT_TOOLS:]
        held_out += own[:HELD_OUT_TOOLS]
    return training, held_out
