"""Stories whose last word only the story tells, and verbs that agree with their subjects.

Made of templates and lists of words, and drawn by a seed.
"""

from __future__ import annotations

import random

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

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
