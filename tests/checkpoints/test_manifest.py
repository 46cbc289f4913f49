import json
import os
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.manifest import read_manifest, write_manifest
from pipeline.checkpoints.verified import load_tokenizer
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import sha256
from tests.project import refused


@pytest.fixture
def checkpoint(neox: PreTrainedModel, tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    neox.save_pretrained(folder)
    write_manifest(folder, neox, name="tiny", family="tinies", tokens=60, origin={"recipe": {}})
    return folder


def test_what_was_written_is_loaded_in_the_dtype_asked_for(
    checkpoint: Path, neox: PreTrainedModel
) -> None:
    for dtype in (torch.float16, "float16"):
        loaded = load_model(checkpoint, dtype)
        assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float16}
    assert not loaded.training
    assert read_manifest(checkpoint).parameters == neox.num_parameters()


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (lambda f: load_model(f, torch.float32), "model.safetensors"),
        (load_tokenizer, "config.json"),
    ],
)
def test_a_flipped_byte_is_refused(checkpoint: Path, load, name: str) -> None:
    path = checkpoint / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    problem = refused(load, checkpoint)
    assert problem.what == str(path)
    assert problem.got.startswith("sha256 ")
    assert problem.expected == f"sha256 {read_manifest(checkpoint).files[name]}"


def test_all_missing_files_are_named_at_once(checkpoint: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (checkpoint / name).unlink()
    with pytest.raises(InputError) as caught:
        load_model(checkpoint, torch.float32)
    assert [problem.got for problem in caught.value.problems] == ["no such file"] * 2


def test_what_the_manifest_does_not_know_is_not_read(checkpoint: Path) -> None:
    path, beside = checkpoint / "manifest.json", checkpoint / "generation_config.json"
    manifest = json.loads(path.read_text())
    del manifest["files"][beside.name]
    path.write_text(json.dumps(manifest))
    beside.unlink()
    without = load_model(checkpoint, "float32").generation_config
    beside.write_text(json.dumps({"eos_token_id": [5, 6, 7]}))
    (checkpoint / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert load_model(checkpoint, "float32").generation_config == without


@pytest.mark.parametrize("content", [None, "", "\x00"])
def test_without_a_manifest_nothing_is_loaded(checkpoint: Path, content: str | None) -> None:
    path = checkpoint / "manifest.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        load_model(checkpoint, torch.float32)


@pytest.mark.parametrize(
    ("make", "got"),
    [(os.mkfifo, "a pipe"), (os.mkdir, "a folder"), (lambda path: path.symlink_to("x"), "no such")],
    ids=["pipe", "folder", "broken link"],
)
def test_only_a_regular_file_is_read(tmp_path: Path, make, got: str) -> None:
    """A pipe would be waited for, for good."""
    make(tmp_path / "config.json")
    with pytest.raises(InputError, match=rf"config\.json\n.*{got}"):
        sha256(tmp_path / "config.json")
