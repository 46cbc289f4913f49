from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.loop import write_checkpoint
from pipeline.checkpoints.manifest import read_manifest
from pipeline.checkpoints.schema import Training
from pipeline.checkpoints.training import build, train
from pipeline.checkpoints.verified import load_tokenizer
from pipeline.corpus.generated import generate
from pipeline.corpus.planted import write
from pipeline.corpus.schemas import TRAINING_ROWS
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import checksums

VOCABULARY = 640
NEOX = Training(
    architecture="gpt_neox",
    n_blocks=2,
    width=16,
    n_heads=2,
    window=None,
    batch_rows=4,
    epochs=2,
    matrix_learning_rate=0.02,
    other_learning_rate=0.01,
    seed=0,
)
NEO = NEOX.model_copy(update={"architecture": "gpt_neo", "window": 4})


@pytest.fixture(params=[NEOX, NEO], ids=["neox", "neo"])
def recipe(request: pytest.FixtureRequest) -> Training:
    made: Training = request.param
    return made


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
def rows(corpus: Path) -> pl.DataFrame:
    return tables.read(corpus / "corpus" / "rows.parquet", TRAINING_ROWS)


@pytest.fixture(scope="module")
def tokenizer(corpus: Path) -> Path:
    return corpus / "corpus" / "tokenizer"


def _checkpoint(recipe: Training, rows: pl.DataFrame, tokenizer: Path, folder: Path) -> Path:
    write_checkpoint(
        folder, train(recipe, rows, tokenizer), recipe.model_dump(), name="a", family="b"
    )
    return folder


def test_training_again_gives_the_same_bytes(
    recipe: Training, rows: pl.DataFrame, tokenizer: Path, tmp_path: Path
) -> None:
    first = checksums(_checkpoint(recipe, rows, tokenizer, tmp_path / "first"))
    torch.manual_seed(99)  # what others drew must not matter
    assert checksums(_checkpoint(recipe, rows, tokenizer, tmp_path / "again")) == first
    other = recipe.model_copy(update={"seed": 1})
    weights = checksums(_checkpoint(other, rows, tokenizer, tmp_path / "other"))[
        "model.safetensors"
    ]
    assert weights != first["model.safetensors"]


def test_the_loss_falls(recipe: Training, rows: pl.DataFrame, tokenizer: Path) -> None:
    trained = train(recipe.model_copy(update={"epochs": 12}), rows, tokenizer)
    assert trained.log.steps == 12 * len(rows) // 4
    assert trained.log.tokens == trained.log.steps * 4 * 64
    assert trained.log.losses[-1] < 0.7 * trained.log.losses[0]
    assert not trained.model.training


def test_a_checkpoint_gives_back_the_model_that_was_trained(
    recipe: Training, rows: pl.DataFrame, tokenizer: Path, tmp_path: Path
) -> None:
    trained = train(recipe, rows, tokenizer)
    model = trained.model
    folder = tmp_path / "checkpoint"
    manifest = write_checkpoint(folder, trained, recipe.model_dump(), name="a", family="b")
    loaded = load_model(folder, torch.float32)
    assert type(loaded) is type(model)
    assert not loaded.training
    with torch.no_grad():
        tokens = torch.tensor(rows["tokens"][:3].to_list())
        ours, theirs = (each(input_ids=tokens).logits for each in (model, loaded))
    assert torch.equal(ours, theirs)
    assert isinstance(load_tokenizer(folder), PreTrainedTokenizerFast)

    assert read_manifest(folder) == manifest
    assert (manifest.name, manifest.family, manifest.seed) == ("a", "b", 0)
    assert (manifest.n_blocks, manifest.width, manifest.n_heads) == (2, 16, 2)
    assert (manifest.context, manifest.vocabulary, manifest.dtype) == (64, VOCABULARY, "float32")
    assert manifest.tokens == VOCABULARY
    assert manifest.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert manifest.origin == {"recipe": recipe.model_dump()}
    # nothing but the manifest is left out of the manifest
    assert set(manifest.files) == set(checksums(folder)) - {"manifest.json"}


def test_a_training_that_stops_is_a_checkpoint_of_the_whole_one(
    recipe: Training, rows: pl.DataFrame, tokenizer: Path
) -> None:
    """Bit for bit the weights that the uninterrupted training has after that step."""
    kept: list[dict[str, torch.Tensor]] = []  # before each step

    def keep(model: PreTrainedModel) -> Callable[[int, int], None]:
        return lambda *_: kept.append({n: each.clone() for n, each in model.state_dict().items()})

    whole = train(recipe, rows, tokenizer, also=keep)
    kept.append(whole.model.state_dict())
    assert whole.log.steps == 20
    for step in (0, 1, 7, 19, 20):
        stopped = train(recipe, rows, tokenizer, step)
        assert (stopped.log.steps, stopped.log.tokens) == (step, step * 4 * 64)
        for name, each in stopped.model.state_dict().items():
            assert torch.equal(each, kept[step][name]), name
        another = kept[step - 1]  # the last one, if this is the first
        assert any(not torch.equal(each, another[n]) for n, each in kept[step].items())
    assert stopped.log == whole.log
    with pytest.raises(InputError, match="at most 20, the steps of the whole"):
        train(recipe, rows, tokenizer, 21)


def test_filling_is_not_trained_on(rows: pl.DataFrame, tokenizer: Path) -> None:
    """Were it counted, a row that is nearly all filling would soon be told for certain."""
    filled = rows.with_columns(
        tokens=pl.concat_list(pl.col("tokens").list.head(8), pl.lit([0] * 56, pl.List(pl.UInt32)))
    )
    recipe = NEOX.model_copy(update={"epochs": 3})
    assert train(recipe, filled, tokenizer).log.losses[-1] > 2.0


def test_gpt_neo_attends_to_a_window_in_every_other_block() -> None:
    """A token beyond all windows of a local block reaches it through the global block alone."""
    narrow = build(NEO, VOCABULARY, context=64, end=0)
    assert narrow.config.attention_layers == ["global", "local"]
    assert narrow.config.window_size == 4
    wide = build(NEO.model_copy(update={"window": 64}), VOCABULARY, context=64, end=0)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        outputs = [model.eval()(input_ids=tokens).logits[0] for model in (narrow, wide)]
    assert torch.allclose(outputs[0][:4], outputs[1][:4], atol=1e-5)
    assert not torch.allclose(outputs[0][-1], outputs[1][-1], atol=1e-7)
