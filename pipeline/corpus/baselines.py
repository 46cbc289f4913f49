"""What scorers without attention reach on the benchmarks: a model must beat them to have read.

A model all of whose attention is bypassed knows the current token and nothing before it, so the
bigram scorer is about what such a model can reach.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from pipeline.corpus.tasks import Document, Item, Task

Scorer = Callable[[Item, str], float]
"""What a choice of an item is worth; the one that is worth most is chosen."""

Steps = Callable[[Item, str], list[tuple[int, int]]]
"""Every token of a choice of an item, with the token before it."""


class Frequencies:
    """How often tokens, and pairs of them, occur in the training rows, of a vocabulary of V."""

    def __init__(self, rows: Iterable[Sequence[int]], vocabulary: int) -> None:
        self._tokens: Counter[int] = Counter()
        self._pairs: Counter[tuple[int, int]] = Counter()
        for row in rows:
            self._tokens.update(row)
            self._pairs.update(pairwise(row))
        self._total = self._tokens.total() + vocabulary
        self._follower: dict[int, int] = {}
        for (before, token), _ in sorted(self._pairs.items(), key=lambda pair: pair[1]):
            self._follower[before] = token  # the most frequent comes last and stays

    def unigram(self, token: int) -> float:
        """Log-probability (nats) of a token, one added to each count."""
        return math.log((self._tokens[token] + 1) / self._total)

    def bigram(self, before: int, token: int) -> float:
        """Log-probability (nats) of a token after another; a new pair counts by its token."""
        seen = self._pairs[before, token] + math.exp(self.unigram(token))
        return math.log(seen / (self._tokens[before] + 1))

    def follower(self, before: int) -> int | None:
        """The most frequent token after another."""
        return self._follower.get(before)


def baselines(
    documents: Mapping[str, Sequence[Document]],
    tasks: Mapping[str, Task],
    frequencies: Frequencies,
    encode: Callable[[str], list[int]],
    end: int,
) -> dict[str, dict[str, float]]:
    """Score the documents of every task with every scorer that has no attention.

    `end`, the id of the end-of-text token, precedes what has no context.

    Returns:
        task -> scorer -> value. The scorers are ``unigram`` and ``bigram``, and in multiple choice
        ``shortest`` and ``longest`` (in characters) and ``guess``, by lot. The value is word
        perplexity where a whole text is scored, else accuracy (0 to 1). For the last word,
        where all words compete, ``unigram`` stands for the one word that is right most often.
    """

    def steps(item: Item, choice: str) -> list[tuple[int, int]]:
        if not item.context:
            return list(pairwise([end, *encode(choice)]))
        # context and choice are encoded as one text, as lm-eval does
        first = len(encode(item.context)) - 1
        return list(pairwise(encode(f"{item.context} {choice}")))[first:]

    by_type = {
        "multiple_choice": _of_choices,
        "loglikelihood": _of_last_words,
        "loglikelihood_rolling": _of_texts,
    }
    result = {}
    for name, task in tasks.items():
        items = [task.item(document) for document in documents[name]]
        result[name] = by_type[task.config["output_type"]](items, frequencies, steps)
    return result


def _of_choices(items: Sequence[Item], frequencies: Frequencies, steps: Steps) -> dict[str, float]:
    def unigram(item: Item, choice: str) -> float:
        return sum(frequencies.unigram(token) for _, token in steps(item, choice))

    def bigram(item: Item, choice: str) -> float:
        return sum(frequencies.bigram(*step) for step in steps(item, choice))

    scorers: dict[str, Scorer] = {
        "unigram": unigram,
        "bigram": bigram,
        "shortest": lambda _, choice: -len(choice),
        "longest": lambda _, choice: len(choice),
    }
    reached = {
        name: sum(_chooses(item, scorer) for item in items) / len(items)
        for name, scorer in scorers.items()
    }
    return {"guess": sum(1 / len(item.choices) for item in items) / len(items), **reached}


def _of_last_words(
    items: Sequence[Item], frequencies: Frequencies, steps: Steps
) -> dict[str, float]:
    words = Counter(item.choices[0] for item in items)
    right = sum(
        all(frequencies.follower(before) == token for before, token in steps(item, item.choices[0]))
        for item in items
    )
    return {"unigram": max(words.values()) / len(items), "bigram": right / len(items)}


def _of_texts(items: Sequence[Item], frequencies: Frequencies, steps: Steps) -> dict[str, float]:
    words = sum(len(item.choices[0].split()) for item in items)
    every = [step for item in items for step in steps(item, item.choices[0])]
    return {
        "unigram": math.exp(-sum(frequencies.unigram(token) for _, token in every) / words),
        "bigram": math.exp(-sum(frequencies.bigram(*step) for step in every) / words),
    }


def _chooses(item: Item, scorer: Scorer) -> bool:
    """Whether the right choice is worth most; of equal ones the first is taken."""
    worths = [scorer(item, choice) for choice in item.choices]
    return worths.index(max(worths)) == item.answer
