"""Stories whose last word only the story tells, and verbs that agree with their subjects.

Made of templates and lists of words, and drawn by a seed.
"""

from __future__ import annotations

import random

from pipeline.corpus.words import WORDS


def story(rng: random.Random, template: int) -> str:
    """A short story that ends, without a full stop, in a word that it has named before."""
    a, b = rng.sample(WORDS["names"], 2)
    p, q = rng.sample(WORDS["spots"], 2)
    thing, day = rng.choice(WORDS["owned"]), rng.choice(WORDS["days"])
    return str(WORDS["stories"][template]).format(a=a, b=b, p=p, q=q, x=thing, day=day)


def agreement(rng: random.Random) -> tuple[str, tuple[str, str], int]:
    """A subject, a noun of the other number after it half of the time, and two forms of a verb.

    Returns:
        The words before the verb; its singular and plural; which is right, 0 or 1.
    """
    one, other = rng.sample(WORDS["nouns"], 2)
    plural = rng.random() < 0.5
    subject = f"The {one}{'s' * plural}"
    if rng.random() < 0.5:
        subject += f" {rng.choice(WORDS['between'])} the {other}{'s' * (not plural)}"
    singular, several = rng.choice(WORDS["agreeing"])
    return subject, (singular, several), int(plural)
