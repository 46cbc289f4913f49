"""Where work is cut, what is taken over and what is not, and that no table depends on it."""

import copy
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from pipeline.interventions.interventions import sweep
from pipeline.measure.memorization import measure
from pipeline.measure.sharded import Running
from pipeline.workflow.errors import InputError
from pipeline.workflow.shards import Arrays, cut, open_shards, remove_finished, seconds_a_token
from tests.measure.cases import random_samples, samples_of
from tests.project import started

SECONDS = [20.0] * 7
"""Of seven items, of which a minute takes three."""


class Killed(BaseException):
    """Stands in for SIGKILL."""


class Work:
    """Item i under each of two interventions; it is killed at the shard that holds `fatal`."""

    def __init__(self, fatal: int | None = None) -> None:
        self.fatal = fatal
        self.done: list[range] = []

    def __call__(self, part: range) -> Arrays:
        if self.fatal in part:
            raise Killed
        self.done.append(part)
        numbers = np.array([part, [-i for i in part]])
        return {"number": numbers.astype(np.float64), "wide": np.stack([numbers, numbers], 2)}


def run(folder, fatal=None, *, minutes=1.0, items="abcdefg", determined_by=None, part=None):
    """One process: what it computed, what it says of its shards, the results."""
    work, results = Work(fatal), None
    with (
        open_shards(folder, minutes, determined_by or {"checkpoint": "1"}, part) as shards,
        suppress(Killed),
    ):
        results = shards.results(work, SECONDS, items)
    return work, shards.told(), results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "study" / "partial" / "memorization" / "model-1.4b"


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def assert_whole(results: Arrays | None) -> None:
    """They are those of one process that computes all at once."""
    assert results is not None
    for name, array in Work()(range(7)).items():
        assert results[name].dtype == array.dtype
        assert np.array_equal(results[name], array)


def test_cut_by_hand():
    assert cut([20.0] * 7, 60) == [range(0, 3), range(3, 6), range(6, 7)]
    assert cut([70.0, 1.0, 1.0, 99.0], 60) == [range(0, 1), range(1, 3), range(3, 4)]
    assert cut([1.0], 60) == [range(0, 1)]


def test_work_is_estimated_by_what_runs_it():
    # 2 operations a parameter, 3 billion a second and thread
    one = seconds_a_token(1_000_000, 15, "cpu", "float32", 1)
    assert one == pytest.approx(2 * 15e6 / 3e10)
    assert seconds_a_token(1_000_000, 15, "cpu", "float32", 4) == pytest.approx(one / 4)
    assert seconds_a_token(1_000_000, 15, "cuda", "float16", 4) < one / 100


def test_only_what_is_missing_is_computed(folder, capsys):
    work, told, _ = run(folder, fatal=6)
    assert work.done == [range(0, 3), range(3, 6)]
    assert told == {"total": 3, "reused": 0, "computed": 2}
    assert "resuming" not in capsys.readouterr().out
    work, told, results = run(folder)
    assert work.done == [range(6, 7)]
    assert told == {"total": 3, "reused": 2, "computed": 1}
    assert "resuming: 2 of 3 shards are kept" in capsys.readouterr().out
    assert_whole(results)


def test_another_key_finds_nothing_and_clears_what_it_finds(folder):
    for changed in (
        {"determined_by": {"checkpoint": "2"}},
        {"determined_by": {"checkpoint": "1", "code": "changed"}},
        {"items": "abcdefh"},
        {"minutes": 0.5},
    ):
        run(folder)
        assert run(folder, **changed)[1]["reused"] == 0
        assert run(folder, **changed)[1]["computed"] == 0
        assert len({path.parent for path in kept(folder)}) == 1


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_shard_is_computed_again(folder, damage, capsys):
    run(folder)
    victim = kept(folder)[1]
    content = victim.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    victim.write_bytes({"truncated": content[:-7], "flipped": flipped, "empty": b""}[damage])
    work, told, results = run(folder)
    assert work.done == [range(3, 6)]
    assert told == {"total": 3, "reused": 2, "computed": 1}
    assert f"{victim} is damaged" in capsys.readouterr().out
    assert_whole(results)


def parts_of(folder: Path) -> Path:
    return folder.parents[2] / "parts" / "memorization" / "model-1.4b"


def test_the_parts_of_a_table_are_its_shards(folder):
    names = [f"{number}-of-4" for number in (1, 2, 3, 4)]
    alone = [run(folder, part=name) for name in names]
    done = [work.done for work, _, _ in alone]
    assert done == [[], [range(0, 3)], [range(3, 6)], [range(6, 7)]], "three shards in four parts"
    assert all(results is None for _, _, results in alone), "a part has no table"
    assert sorted(each.name for each in parts_of(folder).iterdir()) == names
    work, told, results = run(folder)
    assert work.done == []
    assert told == {"total": 3, "reused": 3, "computed": 0}
    assert_whole(results)


def test_a_table_computes_what_its_parts_lack(folder):
    for number in (1, 2):
        run(folder, part=f"{number}-of-2")
    damaged = next(parts_of(folder).glob("2-of-2/*/000003-*"))
    damaged.write_bytes(b"")
    assert run(folder)[0].done == [range(3, 6)]
    assert damaged.exists(), "the output of another stage is left alone"
    work, _, _ = run(folder, determined_by={"checkpoint": "2"})
    assert work.done == [range(0, 3), range(3, 6), range(6, 7)], "parts of another checkpoint"


def test_a_killed_part_resumes(folder):
    run(folder, fatal=6, part="2-of-2")
    assert not parts_of(folder).exists()
    work, told, _ = run(folder, part="2-of-2")
    assert work.done == [range(6, 7)]
    assert told == {"total": 2, "reused": 1, "computed": 1}
    remove_finished(folder.parents[2])
    assert not folder.parents[1].exists(), "its stage has ended"


def test_a_part_that_needs_no_computation_is_empty(folder):
    with open_shards(folder, 1, {}, "1-of-2") as shards:
        shards.end_part()
    assert list((parts_of(folder) / "1-of-2").iterdir()) == []
    with open_shards(folder, 1, {}) as shards:
        shards.end_part()
        assert (folder / "lock").exists(), "which the whole table passes over"


def test_what_was_half_written_is_removed(folder):
    run(folder)
    half = kept(folder)[0].with_name(".000000-000003-abc.safetensors.77.part")
    half.write_bytes(b"half")
    assert run(folder)[1] == {"total": 3, "reused": 3, "computed": 0}
    assert not half.exists()


def test_removed_at_once_or_after_dvc_has_the_table(folder, monkeypatch):
    data = folder.parents[3]
    run(folder)
    with open_shards(folder, 1, {}) as shards:
        shards.finish()
    assert not (data / "partial").exists()

    monkeypatch.setenv("DVC_STAGE", "memorization@model")
    run(folder)
    with open_shards(folder, 1, {"checkpoint": "1"}) as shards:
        shards.finish()
    remove_finished(data)
    assert kept(folder), "its table is not there"
    (data / "memorization").mkdir()
    (data / "memorization" / f"{folder.name}.parquet").touch()
    remove_finished(data)
    assert not (data / "partial").exists()
    remove_finished(data)


HOLD = """
import sys, time
from pathlib import Path
from pipeline.workflow.shards import open_shards
with open_shards(Path(sys.argv[1]), 1, {}) as shards:
    print("held", flush=True)
    for _ in range(600):
        if Path(sys.argv[2]).exists():
            break
        time.sleep(0.1)
    shards.finish()
print("left", flush=True)
"""


@pytest.fixture
def holder(folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process at work on the table, until there is a file `enough`, or for a minute."""
    with started("-c", HOLD, str(folder), str(tmp_path / "enough")) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def test_one_process_at_a_time(folder, holder, tmp_path, monkeypatch):
    said = []

    def told(words: str, **_: object) -> None:
        said.append(words)
        (tmp_path / "enough").touch()

    monkeypatch.setattr("pipeline.workflow.shards.print", told, raising=False)
    with open_shards(folder, 1, {}):
        assert holder.stdout.readline() == "left\n"
        assert (folder / "lock").exists(), "it was removed and made again"
    assert said == [f"waiting for the process that works on {folder}"]


def test_a_killed_process_holds_nothing_up(folder, holder):
    holder.kill()
    holder.wait()
    assert run(folder)[1]["computed"] == 3


FLOATS = ("completion_entropy", "suffix_log_prob", "min_margin")


@pytest.fixture(scope="module")
def samples() -> pl.DataFrame:
    return random_samples(11, 6, 8)


def completed(model, samples, folder, minutes):
    with open_shards(folder, minutes, {}) as shards:
        made = measure(model, samples, sweep(3), Running(1200, shards=shards))
        return made, shards.told()


@pytest.mark.parametrize("at_once", [1, 2, 4, 11])
def test_a_table_does_not_depend_on_its_shards(neo, samples, folder, at_once):
    interventions = sweep(3)
    whole = measure(neo, samples, interventions, Running(1200))
    a_sample = 14 * seconds_a_token(
        neo.num_parameters(), len(interventions), "cpu", "float32", torch.get_num_threads()
    )
    minutes = (at_once + 0.5) * a_sample / 60
    made, told = completed(neo, samples, folder, minutes)
    assert told["total"] == -(-11 // at_once)
    assert made.drop(FLOATS).equals(whole.drop(FLOATS))
    for name in FLOATS:
        assert made[name].to_list() == pytest.approx(whole[name].to_list(), rel=1e-5, abs=1e-5)

    kept(folder)[-1].unlink()
    again, told = completed(neo, samples, folder, minutes)
    assert told["computed"] == 1
    assert again.equals(made), "to the last bit"


def test_progress_and_errors_count_all_samples(overflowing, folder):
    """The last of the samples, the first of its shard, overflows in any precision."""

    def spoil(_: object, asked: tuple[torch.Tensor], states: torch.Tensor) -> torch.Tensor:
        sevens = (asked[0] == 7).all(dim=1) & (asked[0].shape[1] > 1)
        return states.masked_fill(sevens[:, None, None], torch.inf)

    broken = copy.deepcopy(overflowing).float()
    broken.gpt_neox.embed_in.register_forward_hook(spoil)
    tokens = [[5] * 14] * 10 + [[7] * 14]
    done: list[tuple[int, int]] = []
    with (
        open_shards(folder, 1e-12, {}) as shards,
        pytest.raises(InputError, match="baseline, sample 10"),
    ):
        measure(
            broken, samples_of(tokens, 6, 8), sweep(broken.config.num_hidden_layers),
            Running(progress=lambda *call: done.append(call), shards=shards),
        )  # fmt: skip
    assert done == [(i + 1, 11) for i in range(11)]
    assert len(kept(folder)) == 10
