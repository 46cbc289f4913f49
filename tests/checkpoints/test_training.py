from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from pipeline.checkpoints.manifest import load_model, load_tokenizer, read_manifest
from pipeline.checkpoints.training import Recipe, build, train, write_checkpoint
from pipeline.samples.corpus import generate, write

VOCABULARY = 640
NEOX = Recipe(
    architecture="gpt_neox",
    n_blocks=2,
    width=16,
    n_heads=2,
    batch_rows=4,
    matrix_learning_rate=0.02,
    other_learning_rate=0.01,
    seed=0,
)
NEO = dataclasses.replace(NEOX, architecture="gpt_neo", window=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of some forty rows, in the folder `corpus` of what is returned."""
    folder = tmp_path_factory.mktemp("data")
    made = generate(
        seed=0,
        row_length=64,
        vocabulary=VOCABULARY,
        world_tokens=2_000,
        records={4: 2},
        control_records=1,
        task_items=4,
    )
    write(made, folder / "corpus", folder / "tasks", {})
    return folder


@pytest.fixture(scope="module")
def rows(corpus: Path) -> Tensor:
    from pipeline.samples.corpus import read_rows

    return torch.tensor(read_rows(corpus / "corpus")["tokens"].to_list())


def _checkpoint(recipe: Recipe, rows: Tensor, corpus: Path, folder: Path) -> Path:
    model, log = train(recipe, rows, VOCABULARY, end=0)
    tokenizer = corpus / "corpus" / "tokenizer"
    write_checkpoint(folder, model, log, recipe, tokenizer, name="tiny", family="tinies")
    return folder


def _hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize("recipe", [NEOX, NEO], ids=["neox", "neo"])
def test_training_again_gives_the_same_bytes(
    recipe: Recipe, rows: Tensor, corpus: Path, tmp_path: Path
) -> None:
    first = _hashes(_checkpoint(recipe, rows, corpus, tmp_path / "first"))
    torch.manual_seed(99)  # what others drew must not matter
    assert _hashes(_checkpoint(recipe, rows, corpus, tmp_path / "again")) == first
    other = dataclasses.replace(recipe, seed=1)
    weights = _hashes(_checkpoint(other, rows, corpus, tmp_path / "other"))["model.safetensors"]
    assert weights != first["model.safetensors"]


@pytest.mark.parametrize("recipe", [NEOX, NEO], ids=["neox", "neo"])
def test_the_loss_falls(recipe: Recipe, rows: Tensor) -> None:
    model, log = train(recipe, rows.repeat(12, 1), VOCABULARY, end=0)
    assert log.steps == 12 * len(rows) // 4
    assert log.tokens == log.steps * 4 * 64
    assert log.losses[-1] < 0.7 * log.losses[0]
    assert not model.training


@pytest.mark.parametrize("recipe", [NEOX, NEO], ids=["neox", "neo"])
def test_a_checkpoint_gives_back_the_model_that_was_trained(
    recipe: Recipe, rows: Tensor, corpus: Path, tmp_path: Path
) -> None:
    model, log = train(recipe, rows, VOCABULARY, end=0)
    tokenizer = corpus / "corpus" / "tokenizer"
    folder = tmp_path / "checkpoint"
    manifest = write_checkpoint(folder, model, log, recipe, tokenizer, name="a", family="b")
    loaded = load_model(folder, torch.float32)
    assert type(loaded) is type(model)
    assert not loaded.training
    with torch.no_grad():
        ours, theirs = (each(input_ids=rows[:3]).logits for each in (model, loaded))
    assert torch.equal(ours, theirs)
    assert isinstance(load_tokenizer(folder), PreTrainedTokenizerFast)

    assert read_manifest(folder) == manifest
    assert (manifest.name, manifest.family, manifest.seed) == ("a", "b", 0)
    assert (manifest.n_blocks, manifest.width, manifest.n_heads) == (2, 16, 2)
    assert (manifest.context, manifest.vocabulary, manifest.dtype) == (64, VOCABULARY, "float32")
    assert manifest.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert manifest.origin == {"recipe": dataclasses.asdict(recipe)}
    # nothing but the manifest is left out of the manifest
    assert set(manifest.files) == set(_hashes(folder)) - {"manifest.json"}


def test_filling_is_not_trained_on(rows: Tensor) -> None:
    """Rows that differ in nothing but what follows the filling's first token train alike."""
    short = rows[:8].clone()
    short[:, 32:] = 0
    with_documents = train(NEOX, short, VOCABULARY, end=0)[1].losses
    # were the filling counted, half of all tokens would be told for certain, and the loss be low
    assert with_documents[0] > 5.0


def test_gpt_neo_attends_locally_in_every_other_block() -> None:
    model = build(NEO, VOCABULARY, context=64, end=0)
    assert model.config.attention_layers == ["global", "local"]
    assert model.config.window_size == 4


def test_the_window_matters() -> None:
    """A token beyond all windows of a local block reaches it through the global block alone."""
    narrow = build(NEO, VOCABULARY, context=64, end=0)
    wide = build(dataclasses.replace(NEO, window=64), VOCABULARY, context=64, end=0)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        outputs = [model.eval()(input_ids=tokens).logits[0] for model in (narrow, wide)]
    assert torch.allclose(outputs[0][:4], outputs[1][:4], atol=1e-5)
    assert not torch.allclose(outputs[0][-1], outputs[1][-1], atol=1e-7)
