"""A model that is read from disk block by block computes what the resident one does."""

import gc
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel

from pipeline.checkpoints.fit import skeleton
from pipeline.checkpoints.loading import model_of
from pipeline.checkpoints.placement import placement
from pipeline.interventions import complete, score, sweep
from pipeline.interventions.memory import Journal
from pipeline.workflow.hub import Snapshot
from tests.families import ESSENTIAL, tiny
from tests.interventions.cases import (
    MAX_LENGTH,
    SUFFIX,
    half_remembered,
    interventions,
    multiple_choice,
    rolling,
)
from tests.project import python

SMALL = 1000  # bytes: room for no block

assert_equal = partial(torch.testing.assert_close, rtol=0, atol=0, equal_nan=True)


def saved(model: PreTrainedModel, folder: Path) -> Snapshot:
    model.save_pretrained(folder)
    return Snapshot(folder, {path.name: "" for path in folder.iterdir()})


def is_streamed(model: PreTrainedModel) -> bool:
    return any(weight.device.type == "meta" for weight in model.parameters())


@pytest.mark.parametrize("family", sorted(ESSENTIAL))
def test_streamed_results_are_the_resident_ones(family: str, tmp_path: Path) -> None:
    files, listed = saved(tiny(family), tmp_path), interventions(family)
    whole, streamed = (model_of(files, "float32", "cpu", room) for room in (None, SMALL))
    assert is_streamed(streamed)
    assert not is_streamed(whole)
    tokens = half_remembered(whole)
    requests = [*multiple_choice(), *rolling()]
    made = [
        (
            complete(model, tokens, SUFFIX, listed),
            score(model, requests, listed, max_length=MAX_LENGTH, calibration_tokens=tokens),
        )
        for model in (whole, streamed)
    ]
    for resident, other in zip(*made, strict=True):
        assert_equal(other.tensors(), resident.tensors())
    assert is_streamed(streamed), "no block stays after the pass"


def test_half_precision_is_done_again_in_float32(
    overflowing: PreTrainedModel, tmp_path: Path
) -> None:
    files = saved(overflowing, tmp_path)
    tokens = torch.tensor([[7] * 14, [7, 5] * 7])
    made, journals = [], []
    for room in (None, SMALL):
        model = model_of(files, "float16", "cpu", room)
        journals.append(Journal())
        listed = sweep(model.config.num_hidden_layers)
        made.append(complete(model, tokens, 6, listed, journal=journals[-1]))
        assert all(weight.dtype == torch.float16 for weight in model.parameters())
    assert journals[0].overflows == journals[1].overflows > 0
    assert_equal(made[1].tensors(), made[0].tensors())


def test_as_many_blocks_stay_as_fit(neox: PreTrainedModel, tmp_path: Path) -> None:
    bare = skeleton(saved(neox, tmp_path), "here")
    size = sum(4 * weight.numel() for weight in bare.parameters())
    block = sum(4 * weight.numel() for weight in bare.gpt_neox.layers[0].parameters())
    count = len(bare.gpt_neox.layers)
    for room, streamed in ((size, 0), (size - 1, 2), (size - block, 2), (size - 2 * block, 3)):
        places = placement(bare, torch.float32, "cpu", room)
        found = [name for name, place in places.items() if place == "disk"]
        assert found == [f"gpt_neox.layers.{n}" for n in range(count - streamed, count)], room
        assert not places or places["gpt_neox.embed_in"] == places["lm_head"] == "cpu"
    on_gpu = placement(bare, torch.float32, "cuda", SMALL)
    assert set(on_gpu.values()) == {"cuda", "cpu"}, "main memory has room for the blocks"


def test_the_files_are_kept_as_long_as_the_model(
    neox: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = saved(neox, tmp_path / "model")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    model = model_of(files, "float32", "cpu", SMALL)
    assert list((tmp_path / "temporary").iterdir())
    del model
    gc.collect()  # its modules refer to one another
    assert not list((tmp_path / "temporary").iterdir())


PEAK = """
import re, sys, threading, time, torch
from pathlib import Path
from pipeline.checkpoints.loading import model_of
from pipeline.interventions import complete, sweep
from pipeline.workflow.hub import Snapshot

def anonymous():  # without pages of files, which the system takes back when it needs memory
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", status)[1])

def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.002)

def run(folder, room):
    files = Snapshot(folder, {path.name: "" for path in folder.iterdir()})
    model = model_of(files, "float32", "cpu", room)
    listed = sweep(model.config.num_hidden_layers)[:8]
    tokens = torch.arange(2 * 24).view(2, 24)
    return complete(model, tokens, 8, listed, token_budget=2048, decode=False)

folder, room = Path(sys.argv[1]), int(sys.argv[2]) or None
run(folder / "warm", room)  # what the libraries load at first use
before = peak = anonymous()
threading.Thread(target=watch, daemon=True).start()
torch.save(run(folder / "model", room).tensors(), sys.argv[3])
print(peak - before)
"""


@pytest.mark.slow
def test_the_peak_of_a_streamed_pass_is_a_few_blocks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for name, width, blocks in (("warm", 32, 8), ("model", 896, 30)):
        config = GPTNeoXConfig(
            hidden_size=width, intermediate_size=4 * width, num_attention_heads=8,
            num_hidden_layers=blocks, vocab_size=500, max_position_embeddings=64,
        )  # fmt: skip
        model = GPTNeoXForCausalLM(config).half()
        model.save_pretrained(tmp_path / name)
    weights = 4 * model.num_parameters()
    peaks = {}
    for kind, room in (("whole", 0), ("streamed", SMALL)):
        done = python("-c", PEAK, str(tmp_path), str(room), str(tmp_path / kind))
        peaks[kind] = int(done.stdout.splitlines()[-1])
    print(f"peak over the weights: { ({k: round(v / weights, 3) for k, v in peaks.items()}) }")
    assert peaks["whole"] > weights
    assert peaks["streamed"] < weights / 3
    assert_equal(torch.load(tmp_path / "streamed"), torch.load(tmp_path / "whole"))
