"""Copies of passages in a corpus: against plain counting."""

import random

import numpy as np
import polars as pl
import pytest

from pipeline.samples.copies import counted, exact_copies, near_copies

WORDS = [f"word{i}" for i in range(400)]


def text(words, seed):
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def plain_count(corpus, passage):
    return sum(
        one.startswith(passage, at) for one in corpus for at in range(len(one) - len(passage) + 1)
    )


def test_exact_copies_are_those_that_a_plain_search_counts():
    rng = random.Random(0)
    corpus = ["".join(rng.choices("ab é\n", k=300)) for _ in range(5)]
    passages = [one[at : at + size] for one in corpus for at in (3, 50) for size in (1, 4, 9)]
    passages += ["abababab", "zzz", corpus[0][-3:] + corpus[1][:3]]
    expected = [plain_count(corpus, each) for each in passages]
    assert exact_copies(corpus, passages).tolist() == expected
    assert max(expected) > 5
    assert min(expected) == 0
    assert exact_copies([""], ["a"]).tolist() == [0]
    assert exact_copies(["ab", "cd"], ["b\0c"]).tolist() == [0]  # not across two texts


@pytest.mark.parametrize(("changed", "found"), [(0, True), (1, True), (3, True), (20, False)])
@pytest.mark.parametrize("offset", [0, 7, 33])
def test_near_copies_forgive_a_few_words(changed, found, offset):
    passage = text(40, 1).split()
    altered = list(passage)
    for at in random.Random(2).sample(range(40), changed):
        altered[at] = "other"
    corpus = [
        " ".join([text(offset, 3), *(each.upper() for each in altered), text(60, 4)])
        + " " + " ".join([*altered, text(50, 5)]),
        text(200, 6),
    ]  # fmt: skip
    assert near_copies(corpus, [" ".join(passage), text(40, 7)]).tolist() == [2 * found, 0]


def test_passages_without_three_words_and_an_empty_corpus_have_no_near_copy():
    assert near_copies(["one two three four"], ["one two", ""]).tolist() == [0, 0]
    assert near_copies([""], ["one two three"]).tolist() == [0]


def test_the_windows_keep_their_rows_and_a_copy_is_a_near_copy():
    book = text(60, 8)
    rows = [("b", at, at + 120, float(at)) for at in (0, 60, 200)]
    names = ["document", "first_character", "end_character", "kept"]
    windows = pl.DataFrame(rows, schema=names, orient="row")
    made = counted({"b": book}, [book[:190], book[40:190], "x"], windows)
    assert made.select(names).equals(windows)
    assert made["copies"].to_list() == [1, 2, 0]
    assert (made["near_copies"] >= made["copies"]).all()
    assert np.array_equal(made["near_copies"].to_numpy() > 0, [True, True, False])


@pytest.mark.parametrize("passage", ["b\nc", "b\r\nc", "\nc", "b\r", "\r"])
def test_line_ends_of_windows_equal_those_of_others(passage):
    once, twice = (exact_copies([corpus], [passage])[0] for corpus in ("ab\ncd", "ab\r\ncd"))
    assert once == twice
    assert once == 1 or passage == "\r"
