"""The sequences that all of several Pythia models memorized: found, drawn and checked."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipeline.samples import pythia
from pipeline.samples.draw import draw
from pipeline.workflow.errors import InputError
from tests.hub import miniatures
from tests.hub.miniatures import parquet
from tests.hub.population import DATASETS
from tests.hub.server import Hub
from tests.project import python, refused

pytestmark = pytest.mark.usefixtures("hub_home")

REPO = miniatures.EVALS
COMMIT = DATASETS[REPO]
SPLITS = ["duped.1.4b", "duped.2.8b", "duped.6.9b", "duped.12b"]


def evals() -> Mapping[str, bytes]:
    return miniatures.dataset(REPO)


def content(split: str) -> pl.DataFrame:
    """Index and tokens of a split of the local hub, told by its whole name."""
    shards = [io.BytesIO(data) for path, data in evals().items() if f"/{split}-0" in path]
    return pl.concat(pl.read_parquet(shard, columns=["index", "tokens"]) for shard in shards)


def shards(split: str) -> list[str]:
    """The files of a split, as the real repository names them: a hash at the end."""
    return sorted(path for path in evals() if path.startswith(f"data/{split}-0"))


def test_a_split_is_told_by_its_whole_name(hub: Hub, hub_home: Path) -> None:
    files = pythia.fetch_splits(REPO, COMMIT, SPLITS)
    assert {split: [path.name for path in paths] for split, paths in files.items()} == {
        split: [Path(path).name for path in shards(split)] for split in SPLITS
    }
    assert hub.requests("deduped|23000|70m|README") == []
    assert all(path.is_relative_to(hub_home) for paths in files.values() for path in paths)


def test_the_common_sequences_are_drawn(hub: Hub) -> None:
    made = pythia.memorized(pythia.fetch_splits(REPO, COMMIT, SPLITS), 16, seed=0)
    common = set.intersection(*(set(content(split)["index"]) for split in SPLITS))
    assert miniatures.COMMON <= len(common) < miniatures.MEMORIZED
    drawn = draw(sorted(common), 16, 0)
    expected = content("duped.12b").filter(pl.col("index").is_in(drawn.tolist())).sort("index")
    assert made.tolist() == expected["tokens"].to_list()
    assert (made.shape, made.dtype) == ((16, 64), np.uint32)


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.pop(shards("duped.12b")[-1]),
        lambda files: files.pop(shards("duped.12b")[0]),
        lambda files: [files.pop(shard) for shard in shards("duped.12b")],
        lambda files: files.update({"data/duped.12b-00000-of-00003.parquet": b""}),
    ],
    ids=["the last shard", "the first shard", "all shards", "one too many"],
)
def test_a_split_that_is_not_complete_is_refused_before_it_is_fetched(
    hub: Hub, change: Callable[[dict[str, bytes]], object]
) -> None:
    files = dict(evals())
    change(files)
    commit = hub.dataset("mini/evals").add(files)
    with pytest.raises(InputError, match=r"for the split duped\.12b: ") as caught:
        pythia.fetch_splits("mini/evals", commit, [*SPLITS, "duped.70m"])
    assert len(caught.value.problems) == 1
    assert hub.requests("/resolve/") == []


def test_all_unknown_splits_are_told_at_once() -> None:
    with pytest.raises(InputError, match="no file") as caught:
        pythia.fetch_splits(REPO, COMMIT, ["duped.1.4b", "duped.13b", "duped.2b"])
    assert len(caught.value.problems) == 2


def test_a_split_may_be_named_without_a_hash(hub: Hub) -> None:
    """The datasets library adds one to the files that it uploads, other tools do not."""
    files = {
        re.sub(r"-[0-9a-f]{16}(\.parquet)", r"\1", path): data for path, data in evals().items()
    }
    assert files.keys() != evals().keys()
    commit = hub.dataset("mini/evals").add(files)
    plain = pythia.fetch_splits("mini/evals", commit, SPLITS)
    hashed = pythia.fetch_splits(REPO, COMMIT, SPLITS)
    assert pythia.memorized(hashed, 16, 0).tolist() == pythia.memorized(plain, 16, 0).tolist()


Rows = Mapping[int, Sequence[int | None] | None]
COLUMNS = {"index": pl.Int64, "tokens": pl.List(pl.Int64)}


def rows(indices: Sequence[int]) -> dict[int, Sequence[int | None] | None]:
    """Index -> 64 tokens, the same for the same index."""
    return {i: [(i * 7 + t) % 400 for t in range(64)] for i in indices}


def written(folder: Path, splits: Mapping[str, Sequence[Rows]]) -> dict[str, list[Path]]:
    """Each split as parquet files, one for each of its shards."""
    files: dict[str, list[Path]] = {}
    for split, shards in splits.items():
        files[split] = []
        for number, shard in enumerate(shards):
            path = folder / f"{split}-{number}.parquet"
            columns = {"index": list(shard), "tokens": list(shard.values())}
            pl.DataFrame(columns, schema=COLUMNS).write_parquet(path)
            files[split].append(path)
    return files


def test_neither_the_order_of_rows_nor_of_shards_matters(tmp_path: Path) -> None:
    one, two = rows(range(0, 60, 2)), rows(range(0, 60, 3))
    (tmp_path / "turned").mkdir()
    straight = written(tmp_path, {"x": [one], "y": [two]})
    parts = [rows(range(50, -1, -2)), rows(range(58, 50, -2))]
    turned = written(tmp_path / "turned", {"y": [two], "x": parts})
    made = pythia.memorized(straight, 6, seed=3)
    assert made.tolist() == pythia.memorized(turned, 6, seed=3).tolist()
    expected = draw(range(0, 60, 6), 6, 3).tolist()
    assert made.tolist() == [rows(expected)[i] for i in expected]
    assert made.tolist() != pythia.memorized(straight, 6, seed=4).tolist()


def test_too_few_common_sequences_are_refused(tmp_path: Path) -> None:
    """One that is listed twice counts once."""
    halves = [rows(range(8)), rows(range(5, 10))]
    files = written(tmp_path, {"x": halves, "y": [rows(range(5, 15))]})
    assert pythia.memorized(files, 5, 0).tolist() == list(rows(range(5, 10)).values())
    problem = refused(pythia.memorized, files, 6, 0)
    assert "5 that all have in common" in str(problem)
    assert problem.what == "sequences memorized by x, y"
    assert "n_memorized" in problem.remedy


def test_other_tokens_under_one_index_are_refused(tmp_path: Path) -> None:
    other = rows(range(10)) | {3: [9] * 64, 7: [9] * 64}
    files = written(tmp_path, {"x": [rows(range(10))], "y": [other]})
    problem = refused(pythia.memorized, files, 10, 0)
    assert "index 3 and 1 more" in str(problem)
    assert problem.got == "other tokens in y than in x"


@pytest.mark.parametrize(
    ("tokens", "got"),
    [
        ([1] * 63, "63 tokens"),
        ([1] * 65, "65 tokens"),
        ([], "0 tokens"),
        ([1] * 63 + [-1], "the smallest -1"),
        ([1] * 63 + [None], "63 tokens"),
        (None, "0 tokens"),
    ],
)
@pytest.mark.parametrize("place", [0, 1], ids=["first", "second"])
def test_what_is_no_sequence_of_64_ids_is_refused(
    tmp_path: Path, tokens: list[int | None] | None, got: str, place: int
) -> None:
    contents = [rows(range(4)), rows(range(4))]
    contents[place][2] = tokens
    files = written(tmp_path, {"x": [contents[0]], "y": [contents[1]]})
    with pytest.raises(InputError, match="index 2\n") as caught:
        pythia.memorized(files, 4, 0)
    named = [p for p in caught.value.problems if p.what.startswith(f"split {'xy'[place]}")]
    assert got in named[0].got
    assert named[0].expected == "64 token ids"


SCHEMA = "index, an integer, and tokens, a list of integers"
UNREADABLE: dict[str, tuple[bytes, str]] = {
    "no parquet": (b"PAR1 but no more", "parquet files"),
    "no rows": (parquet(pl.DataFrame(schema=COLUMNS).to_dict()), "some"),
    "no index": (parquet({"idx": [1], "tokens": [[1] * 64]}), SCHEMA),
    "no tokens": (parquet({"index": [1], "text": ["a"]}), SCHEMA),
    "text": (parquet({"index": [1], "tokens": ["1 2 3"]}), SCHEMA),
    "index of text": (parquet({"index": ["one"], "tokens": [[1] * 64]}), SCHEMA),
    "tokens of text": (parquet({"index": [1], "tokens": [["a"] * 64]}), SCHEMA),
    "fractions": (parquet({"index": [1.5], "tokens": [[1] * 64]}), SCHEMA),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_file_without_sequences_is_refused(tmp_path: Path, case: str) -> None:
    content, expected = UNREADABLE[case]
    files = written(tmp_path, {"x": [rows(range(4))]})
    (tmp_path / "y.parquet").write_bytes(content)
    problem = refused(pythia.memorized, {**files, "y": [tmp_path / "y.parquet"]}, 1, 0)
    assert (problem.what, problem.expected) == ("split y", expected)


AT_SCALE = """
import re, resource, sys
from pathlib import Path
import numpy as np, polars as pl
from pipeline.samples import pythia

def peak():
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # not Linux's ru_maxrss, which begins with what the parent process had taken
    return int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1])

folder = Path(sys.argv[1])
files = {path.stem: [path] for path in sorted(folder.glob("*.parquet"))}
made = pythia.memorized(files, 15_000, 0)
assert (made[:, 0] == made[:, 63]).all() and len(np.unique(made[:, 0])) == 15_000
print(made.shape, peak() // 1024)
"""


def test_a_tenth_of_the_real_size_takes_little_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    universe = np.arange(300_000, dtype=np.int64)
    for split, share in zip(SPLITS, (137_000, 168_000, 212_000, 238_000), strict=True):
        index = rng.permutation(universe)[:share]
        tokens = np.repeat(index[:, None], 64, axis=1)
        frame = pl.DataFrame({"index": index, "tokens": tokens})
        frame = frame.with_columns(pl.col("tokens").arr.to_list())
        frame.write_parquet(tmp_path / f"{split}.parquet", compression="lz4")
    shape, _, megabytes = python("-c", AT_SCALE, str(tmp_path)).stdout.rpartition(" ")
    assert shape == "(15000, 64)"
    assert int(megabytes) < 2000
