"""The README's Python example runs and prints what it says."""

import doctest
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_readmes_example():
    found = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert found.attempted > 5
    assert not found.failed
