"""Records that a model can only know by heart: contact cards, keys, UUIDs, log lines, settings.

A record is planted in the training rows a chosen number of times, or never.
"""

import random
import uuid
from collections.abc import Callable

from pipeline.corpus.world import invent_words

SYLLABLES = 3
"""Of the invented words in a record; the world's names have two, so the two never coincide."""


def record_text(kind: str, rng: random.Random) -> str:
    """A record of one of `KINDS`, several lines long; every digit and word comes from `rng`."""
    return f"# {kind}\n" + "\n".join(KINDS[kind](rng) for _ in range(8))


def _contact(rng: random.Random) -> str:
    first, last, host, street = invent_words(rng, 4, SYLLABLES)
    return (
        f"name {first} {last} tel {_digits(rng, 3)}-{_digits(rng, 4)} "
        f"mail {first}@{host}.org street {street} {_digits(rng, 2)}"
    )


def _key(rng: random.Random) -> str:
    (service,) = invent_words(rng, 1, SYLLABLES)
    return f"{service}_key = {rng.getrandbits(64):016x}"


def _uuid(rng: random.Random) -> str:
    (owner,) = invent_words(rng, 1, SYLLABLES)
    return f"{owner} {uuid.UUID(int=rng.getrandbits(128), version=4)}"


def _log(rng: random.Random) -> str:
    host, user = invent_words(rng, 2, SYLLABLES)
    level = rng.choice(("warn", "info", "fail"))
    clock = ":".join(_digits(rng, 2) for _ in range(3))
    return f"{clock} {level} {host} code {_digits(rng, 3)} user {user}"


def _setting(rng: random.Random) -> str:
    section, option, value = invent_words(rng, 3, SYLLABLES)
    return f"{section}.{option} = {value} {_digits(rng, 3)}"


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choice("0123456789") for _ in range(count))


KINDS: dict[str, Callable[[random.Random], str]] = {
    "contact": _contact,
    "key": _key,
    "uuid": _uuid,
    "log": _log,
    "setting": _setting,
}
