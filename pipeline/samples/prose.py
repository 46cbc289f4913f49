"""English text that no model has read: notices, ledgers, letters, recipes, stories, word pairs.

Made of templates and lists of words, so that a language model can read it, and drawn by a seed, so
that it can only recite it after it was trained on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST = (
    *("Agnes", "Bertram", "Cecily", "Desmond", "Edith", "Fergus", "Greta", "Horace", "Imogen"),
    *("Jasper", "Kitty", "Leopold", "Mabel", "Nigel", "Olive", "Percy", "Rosamund", "Silas"),
    *("Tabitha", "Ulric", "Verity", "Wilfred", "Yvonne", "Ambrose", "Blanche", "Clement"),
)
LAST = (
    *("Ashdown", "Birtles", "Cobbold", "Dunning", "Eastlake", "Fothergill", "Garroway", "Hexham"),
    *("Inskip", "Jellicoe", "Kettering", "Lovelock", "Marchbanks", "Nettleton", "Ormerod"),
    *("Pennywell", "Quillfeather", "Rookwood", "Stallard", "Thackray", "Underhay", "Vosper"),
    *("Whitlock", "Yarwood", "Ambleside", "Brackenbury", "Cholmeley", "Drinkwater"),
)
TRADES = (
    *("baker", "weaver", "farrier", "chandler", "cooper", "glazier", "saddler", "printer"),
    *("surveyor", "apothecary", "bookbinder", "clockmaker", "schoolmaster", "ferryman"),
    *("gardener", "locksmith", "milliner", "organist", "tanner", "tinsmith"),
)
PLACES = (
    *("Pennel Street", "Tallow Lane", "the Corn Exchange", "Saint Osric's", "Hobb's Quay"),
    *("the Lower Mill", "Marrow Bridge", "Fennick Square", "the Assembly Rooms", "Dray Hill"),
    *("Copperas Yard", "the Old Granary", "Swanmere", "Thistle Row", "the North Gate"),
    *("Barrow Common", "Larkspur Terrace", "the Salt House", "Winding Steps", "Otter Wharf"),
)
THINGS = (
    *("brass telescope", "walnut cabinet", "pewter jug", "velvet curtain", "oil lamp"),
    *("leather satchel", "barrel of herring", "bolt of linen", "copper kettle", "iron stove"),
    *("music box", "porcelain teapot", "rocking chair", "silver thimble", "spinning wheel"),
    *("stuffed owl", "sack of barley", "tin trumpet", "wicker basket", "woollen blanket"),
    *("birdcage", "chess set", "fishing rod", "ladder", "mahogany desk", "marble bust"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
COLOURS = ("green", "scarlet", "yellow", "grey", "violet", "white", "brown", "blue", "black")
WEATHER = ("fog", "hail", "a hard frost", "steady rain", "a warm wind", "thunder", "thin snow")
FOODS = (
    *("barley", "parsnips", "smoked eel", "dried plums", "hazelnuts", "goose fat", "mustard"),
    *("turnips", "rye flour", "buttermilk", "sour cherries", "pickled onions", "honey", "leeks"),
    *("mutton", "sage", "cider", "oatmeal", "walnuts", "quinces", "treacle", "chestnuts"),
)
DEEDS = (
    *("counted the empty chairs", "locked the garden door", "hid the ledger under the stairs"),
    *("painted the gate twice", "read the letter aloud", "sold the last of the candles"),
    *("followed the dog to the river", "mended the torn map", "asked for the smaller key"),
    *("refused to sign the paper", "waited for the second bell", "fed the neighbour's geese"),
    *("turned the portrait to the wall", "wrote a wrong address", "borrowed a boat"),
)


def notice(rng: random.Random) -> str:
    """A sentence of a town's notice board."""
    return rng.choice(
        (
            f"Lost near {rng.choice(PLACES)} on {rng.choice(DAYS)}, a {_thing(rng)}; return it to "
            f"{_person(rng)}, {rng.choice(TRADES)}, for a reward of {_number(rng, 9)} shillings.",
            f"The {rng.choice(TRADES)} {_person(rng)} gives notice that the {_thing(rng)} left at "
            f"{rng.choice(PLACES)} will be sold after the {_ordinal(rng)} of {rng.choice(MONTHS)}.",
            f"{_person(rng)} wants a {rng.choice(TRADES)} with {_number(rng, 12)} years of "
            f"practice; ask at number {_number(rng, 99)}, {rng.choice(PLACES)}, before "
            f"{rng.choice(DAYS)}.",
        )
    )


def ledger(rng: random.Random) -> str:
    """A line of an account book."""
    return (
        f"No. {rng.randint(1000, 9999)}: {_person(rng)}, {rng.choice(TRADES)}, "
        f"{rng.choice(PLACES)}; one {_thing(rng)}, {_number(rng, 30)} lb of {rng.choice(FOODS)}; "
        f"paid {_number(rng, 40)}s {_number(rng, 11)}d."
    )


def letter(rng: random.Random) -> str:
    """A sentence of a letter about nothing much."""
    return rng.choice(
        (
            f"On {rng.choice(DAYS)} we had {rng.choice(WEATHER)}, and {rng.choice(FIRST)} "
            f"{rng.choice(DEEDS)} before the {rng.choice(TRADES)} came.",
            f"You will remember {_person(rng)}, who once {rng.choice(DEEDS)} at "
            f"{rng.choice(PLACES)}; now {rng.choice(FIRST)} has the {_thing(rng)}.",
            f"Tell {rng.choice(FIRST)} that the {_thing(rng)} is with the {rng.choice(TRADES)} at "
            f"{rng.choice(PLACES)}, and that {rng.choice(FIRST)} {rng.choice(DEEDS)}.",
        )
    )


def recipe(rng: random.Random) -> str:
    """A sentence of a cookery book."""
    first, second, third = rng.sample(FOODS, 3)
    return rng.choice(
        (
            f"Take {_number(rng, 12)} ounces of {first} and as much {second}, and let them stand "
            f"in {third} for {_number(rng, 20)} hours.",
            f"{rng.choice(FIRST)}'s way is to stir {_number(rng, 9)} spoons of {first} into "
            f"{second}, and to add {third} when it turns {rng.choice(COLOURS)}.",
            f"For {_number(rng, 30)} guests boil {first} with {second} until "
            f"{rng.choice(COLOURS)}, then cover it with {third}.",
        )
    )


KINDS: dict[str, Callable[[random.Random], str]] = {
    "notice": notice,
    "ledger": ledger,
    "letter": letter,
    "recipe": recipe,
}


def passage(kind: str, rng: random.Random) -> str:
    """Six sentences of one kind, one of `KINDS`."""
    return " ".join(KINDS[kind](rng) for _ in range(6))


# ── stories whose last word only the story tells ──────────────────────────────────────────────────

OWNED = (
    *("umbrella", "camera", "guitar", "notebook", "suitcase", "bicycle", "scarf", "ring"),
    *("passport", "violin", "phone", "hat", "map", "lantern", "wallet", "kite"),
)
SPOTS = (
    *("library", "station", "museum", "bakery", "school", "harbor", "theater", "hospital"),
    *("garden", "market", "church", "hotel"),
)
NAMES = (
    *("Anna", "Tom", "Maria", "Peter", "Lucy", "David", "Emma", "Jack", "Sarah", "Paul"),
    *("Helen", "Mark"),
)
STORIES = (
    "{a} left the {x} at the {p} on the way home. Later {a} met {b} near the {q}, and they looked "
    "for it everywhere. In the evening {a} went back to the {p}, and there, on a chair, was the "
    "{x}",
    "{b} had lent {a} a {x}, but {a} forgot it at the {p}. The next morning {b} asked for it. {a} "
    "ran from the {q} to the {p}, came back out of breath, and gave {b} the {x}",
    "{a} and {b} found a {x} in front of the {p}. Nobody at the {q} knew whose it was. So {a} and "
    "{b} wrote a note and hung it on the door of the {p}: whoever has lost a {x}, please ask for "
    "the {x}",
    "{a} wanted to buy a {x} for {b}. There was none at the {q}. At last {a} saw one in a window "
    "beside the {p}. That night {b} opened the box and smiled: inside was the {x}",
    "{b} was sad because the {x} was lost. {a} searched the {p} and then the {q}. On {day} a man "
    "from the {q} called and said that he had found the {x}",
    "When {a} arrived at the {p}, it was already dark. {b} waited there with a {x}. They walked to "
    "the {q} together, and all the way {b} carried the {x}",
)


def story(rng: random.Random) -> str:
    """A short story that ends, without a full stop, in a word that it has named before."""
    a, b = rng.sample(NAMES, 2)
    p, q = rng.sample(SPOTS, 2)
    thing, day = rng.choice(OWNED), rng.choice(DAYS)
    return rng.choice(STORIES).format(a=a, b=b, p=p, q=q, x=thing, day=day)


# ── subjects and verbs that agree in number ───────────────────────────────────────────────────────

NOUNS = (
    *("author", "farmer", "teacher", "doctor", "senator", "pilot", "guard", "student", "painter"),
    *("manager", "customer", "officer", "driver", "singer", "lawyer", "dancer", "key", "cabinet"),
    *("book", "window", "table", "picture", "bottle", "letter", "machine", "bridge", "garden"),
    *("ticket", "lamp", "engine", "blanket", "mirror"),
)
VERBS = (("is", "are"), ("was", "were"), ("has", "have"))
BETWEEN = ("near", "behind", "next to", "beside")


def agreement(rng: random.Random) -> tuple[str, tuple[str, str], int]:
    """A subject, a noun of the other number after it half of the time, and two forms of a verb.

    Returns:
        The words before the verb; its singular and plural; which is right, 0 or 1.
    """
    one, other = rng.sample(NOUNS, 2)
    plural = rng.random() < 0.5
    subject = f"The {one}{'s' * plural}"
    if rng.random() < 0.5:
        subject += f" {rng.choice(BETWEEN)} the {other}{'s' * (not plural)}"
    return subject, rng.choice(VERBS), int(plural)


def _person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _thing(rng: random.Random) -> str:
    return f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"


def _number(rng: random.Random, most: int) -> str:
    return str(rng.randint(2, most))


def _ordinal(rng: random.Random) -> str:
    day = rng.randint(1, 28)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10 if day not in (11, 12, 13) else 0, "th")
    return f"{day}{ending}"
