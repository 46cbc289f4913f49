"""Anything may be in a file: what reads it either takes it, or says what is wrong with it.

    FUZZ=20000 pytest tests/faults/test_fuzz.py

takes so many examples of each kind, where `make test` takes a few.
"""

import copy
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline.checkpoints.manifest import MANIFEST, Manifest, read_manifest
from pipeline.samples import schemas
from pipeline.study import composition as study
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError, Problem, shorten
from tests.faults.test_bad_input import GOOD, HOSTILE, SAMPLES
from tests.project import ROOT

EXAMPLES = int(os.environ.get("FUZZ", "60"))
LONG = EXAMPLES > 60

fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    suppress_health_check=list(HealthCheck),
)

TEXT = (ROOT / "params.yaml").read_text(encoding="utf-8")
VALUES: dict[str, Any] = YAML(typ="safe").load(TEXT)


def accepted(read: Callable[[], object]) -> bool:
    """Whether it was taken; what is refused comes with all that an error has to have."""
    try:
        read()
    except InputError as error:
        refusal = error
    else:
        return True
    for problem in refusal.problems:
        lines = str(problem).splitlines()
        assert [line.split()[0] for line in lines[1:]] == ["got:", "expected:", "remedy:"]
        assert all(line.isprintable() for line in lines)
        assert len(str(problem)) < 5_000
    return False


def paths(value: object, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value lies."""
    below = dict(enumerate(value)) if isinstance(value, list) else value
    if not isinstance(below, dict):
        return []
    steps = [((*here, key), each) for key, each in below.items()]
    return [path for step, each in steps for path in (step, *paths(each, step))]


ODD = st.sampled_from(
    [
        *HOSTILE,
        *("\ud800", "é", "a" * 10_000, "null", "tiny", 0, -1, 1, 2**31, 2**63, 10**400, -(10**400)),
        *(float("nan"), float("inf"), -float("inf"), -0.0, 1e-320, 0.5),
        *(True, [], {}, [[]], {"a": 1}, {1: 2}, {None: None}, b"bytes"),
    ]
)
SCALARS = ODD | st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates()
KEYS = (
    st.text(max_size=5)
    | st.integers()
    | st.none()
    | st.booleans()
    | st.floats()
    | ODD.filter(lambda value: not isinstance(value, (list, dict)))
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@fuzzed
@given(ANYTHING)
def test_anything_for_a_study(values: object) -> None:
    assert not accepted(lambda: study.check(values))


@fuzzed
@given(st.lists(st.tuples(st.sampled_from(paths(VALUES)), ANYTHING), min_size=1, max_size=3))
def test_a_study_with_other_values(edits: list[tuple[tuple[Any, ...], Any]]) -> None:
    values = copy.deepcopy(VALUES)
    for path, value in edits:
        with suppress(TypeError, IndexError, KeyError):  # an edit before this one was further up
            reduce(getitem, path[:-1], values)[path[-1]] = value
    accepted(lambda: study.check(values))


@fuzzed
@given(st.sampled_from(paths(VALUES)), KEYS, st.booleans())
def test_a_study_with_other_keys(path: tuple[Any, ...], key: Any, added: bool) -> None:
    values = copy.deepcopy(VALUES)
    place = reduce(getitem, path[:-1], values)
    if isinstance(place, dict):
        place[key] = place[path[-1]] if added else place.pop(path[-1])
    accepted(lambda: study.check(values))


PIECES = st.sampled_from(
    [
        *("!!int x", "!!bool x", "!!float x", "!!timestamp x", "!!set [a]", "!!omap {a: 1}", "&a"),
        *("*a", "<<: *a", "? [a]", "? {a: b}", "|\n  x", "- ", ": ", "{", "}", "[", "]", "%YAML 9"),
        *("---", "...", "\t", "\n", "'", '"', "!!python/object/apply:os.system [ls]", "#"),
        *("0x" + "f" * 9, "0x" + "f" * 5_000, "2001-99-99", "1e999", ".nan", "0o9", "\ufeff"),
        "!!binary x",
    ]
)


@fuzzed
@given(st.data())
def test_a_damaged_text(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = TEXT.splitlines()
    start = data.draw(st.integers(0, len(lines) - 1))
    part = "\n".join(lines[start : start + data.draw(st.integers(0, 6))])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(part)))
        part = part[:at] + data.draw(PIECES | st.text(max_size=4)) + part[at:]
    path = tmp_path_factory.getbasetemp() / "params.yaml"
    path.write_bytes(part.encode("utf-8", "surrogatepass"))
    assert not accepted(lambda: study.load(path))


def test_few_lines_that_stand_for_many_values(tmp_path: Path) -> None:
    """Each line names the one before nine times: its repr would have a milliard values."""
    names = "abcdefghi"
    lines = [f"{names[0]}: &{names[0]} [x]"]
    for before, name in pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    path = tmp_path / "params.yaml"
    path.write_text("\n".join([*lines, "study: *i", "models: *i", ""]))
    assert not accepted(lambda: study.load(path))


@fuzzed
@given(ANYTHING)
def test_any_value_is_shown_on_a_line(value: object) -> None:
    assert len(shorten(value)) <= 120
    shown = str(Problem(shorten(value), str(shorten(value)), "x", "y"))
    assert len(shown.splitlines()) == 4


def test_a_number_that_python_does_not_write_out(tmp_path: Path) -> None:
    """Hexadecimal digits are read without a limit; decimal ones are not written without one."""
    number = "0x" + "f" * 5_000
    path = tmp_path / "params.yaml"
    seed = TEXT.replace("statistics:\n  seed: 0", f"statistics:\n  seed: {number}")
    assert seed != TEXT
    for text in (seed, number, f"{TEXT}\n? {number}\n: 1\n", f"? {number}\n: 1\n"):
        path.write_text(text)
        assert not accepted(lambda: study.load(path))
    values = copy.deepcopy(VALUES)
    values["corpus"]["tiny"]["records"][16**5_000] = "x"
    assert not accepted(lambda: study.check(values))


# ---------------------------------------------------------------------- tables


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "samples.parquet"
    tables.write(SAMPLES, path, schemas.SAMPLES, {"seed": 1})
    return path


@fuzzed
@given(st.data())
def test_a_damaged_table(table: Path, data: st.DataObject) -> None:
    whole = bytearray(table.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    for _ in range(data.draw(st.integers(0, 1))):
        at, length = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 64))
        whole[at : at + length] = data.draw(st.binary(max_size=8))
    damaged = table.with_name("damaged.parquet")
    damaged.write_bytes(whole)
    accepted(lambda: tables.read(damaged, schemas.SAMPLES))
    accepted(lambda: tables.provenance(damaged))


def test_every_cut_of_a_table_is_refused(table: Path) -> None:
    whole = table.read_bytes()
    cut = table.with_name("cut.parquet")
    for length in range(0, len(whole), 1 if LONG else 29):
        cut.write_bytes(whole[:length])
        assert not accepted(lambda: tables.read(cut, schemas.SAMPLES))
        assert not accepted(lambda: tables.provenance(cut))


def test_every_other_bit_of_a_page_is_noticed(table: Path) -> None:
    """Pages have checksums: what is read is what was written."""
    whole = table.read_bytes()
    flipped = table.with_name("flipped.parquet")
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    noticed = 0
    for at in range(4, footer, 1 if LONG else 13):
        flipped.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            assert tables.read(flipped, schemas.SAMPLES).equals(SAMPLES)
        except InputError:
            noticed += 1
    assert noticed


# ---------------------------------------------------------------------- manifests


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@fuzzed
@given(st.dictionaries(st.sampled_from([*GOOD, "other"]), JSON, max_size=2), JSON)
def test_any_manifest(
    tmp_path_factory: pytest.TempPathFactory, edits: dict[str, Any], instead: object
) -> None:
    folder = tmp_path_factory.getbasetemp()
    for values in ({**GOOD, **edits}, instead):
        (folder / MANIFEST).write_text(json.dumps(values))

        def read() -> None:
            manifest = read_manifest(folder)
            assert isinstance(manifest, Manifest)
            assert manifest.weight_bytes("float32") > 0

        accepted(read)
