import random

from pipeline.corpus.world import (
    DEEDS,
    RELATIONS,
    World,
    errand,
    invent_words,
    make_world,
    question,
    scene,
)


def test_a_seed_makes_one_world(world: World) -> None:
    assert make_world(0, 128) == world
    assert make_world(1, 128) != world


def test_the_two_sides_share_no_animal_and_no_pair(world: World) -> None:
    names = [{animal.name for animal in side.animals} for side in (world.training, world.held_out)]
    assert len(names[1]) == 128
    assert not names[0] & names[1]
    for pairs in ("owners", "acquaintances", "materials", "finds"):
        training, held_out = set(getattr(world.training, pairs)), getattr(world.held_out, pairs)
        assert held_out
        assert training
        assert training.isdisjoint(held_out)


def test_every_answer_is_equally_frequent_among_the_held_out_animals(world: World) -> None:
    for relation in RELATIONS:
        values = [animal.value(relation) for animal in world.held_out.animals]
        counts = [values.count(value) for value in set(values)]
        assert len(counts) == 6
        assert max(counts) - min(counts) <= 6


def test_words_of_other_syllables_are_other_words() -> None:
    rng = random.Random(0)
    two, three = invent_words(rng, 500, 2), invent_words(rng, 500, 3)
    assert len(set(two)) == 500
    assert not set(two) & set(three)


def test_a_question_opens_with_the_clue_that_answers_it(world: World) -> None:
    animal = world.training.animals[0]
    asked = question(animal, "food", random.Random(0))
    assert asked.startswith(f"the {animal.name} lives in the {animal.home} .")
    assert animal.value("food") not in asked.split()


def test_a_scene_goes_on_with_the_deed_of_the_tool_that_was_taken(world: World) -> None:
    tools = {f"{deed} .": tool for tool, deed in DEEDS.items()}
    for seed in range(50):
        opening, deeds = scene(world.held_out, 4, random.Random(seed))
        actor = opening.split()[-1]
        first = tools[deeds[0]]
        assert opening.split().count(first) >= 2  # it lies there, and is taken
        for deed in deeds:  # none is told by being named, or by who the actor is
            assert f"the {tools[deed]} " in opening
            assert (actor, tools[deed]) in world.held_out.owners


def test_the_last_word_of_an_errand_occurs_before(world: World) -> None:
    for seed in range(50):
        words = errand(world.held_out, random.Random(seed))[0].split()
        assert words[-1] in words[:-1]
