"""The Python examples of the README and the docs run and print what they say."""

import doctest
import re
from pathlib import Path

import pytest

from tests.families import FAMILIES

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_example(page):
    found = doctest.testfile(str(ROOT / page), module_relative=False)
    assert found.attempted > 5
    assert not found.failed


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_families_are_counted(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.search(rf"\b{len(FAMILIES)} (small|tiny) models", text)
