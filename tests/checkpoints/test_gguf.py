from pathlib import Path

import polars as pl
import pytest
import torch

from pipeline.checkpoints.gguf import famous, finetune, perplexity, read_model
from pipeline.checkpoints.loading import load
from pipeline.checkpoints.loop import Trained, write_checkpoint
from pipeline.checkpoints.schema import Gguf
from pipeline.corpus import passages
from pipeline.corpus.planted import write
from pipeline.corpus.schema import Weights
from pipeline.corpus.schemas import RECORDS, TRAINING_ROWS
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import checksums
from tests.gguf_files import small_llama, small_tokenizer, write_gguf

RECIPE = Gguf(
    seed=0,
    billions=0.001,
    weights=Weights(package="boxed==1.0", sha256="0" * 64, file="boxed/weights.gguf"),
    batch_rows=4,
    epochs=1,
    learning_rate=0.01,
    largest_perplexity=1e5,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(folder / "small.gguf", small_llama(), small_tokenizer())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("corpus"), small_tokenizer()
    made = passages.generate(
        tokenizer, seed=0, row_length=32, records={1: 2, 8: 4}, control_records=2, task_items=4
    )
    write(made, folder / "corpus", folder / "tasks", {})
    return folder / "corpus"


@pytest.fixture(scope="module")
def rows(corpus: Path) -> pl.DataFrame:
    return tables.read(corpus / "rows.parquet", TRAINING_ROWS)


def _finetuned(file: Path, corpus: Path, rows: pl.DataFrame, **changes: float) -> Trained:
    recipe = RECIPE.model_copy(update=changes)
    known = famous(tables.read(corpus / "records.parquet", RECORDS))
    return finetune(recipe, read_model(file), rows, known, corpus / "tokenizer")


def test_the_model_is_the_one_that_was_written(file: Path) -> None:
    read, written = read_model(file), small_llama()
    assert type(read) is type(written)
    assert not hasattr(read.config, "quantization_config")
    torch.testing.assert_close(read.state_dict(), written.state_dict(), rtol=0, atol=0)
    tokens = torch.arange(3, 35)[None]
    with torch.inference_mode():
        # epsilon is stored in single precision
        torch.testing.assert_close(read(tokens).logits, written(tokens).logits)


def test_a_checkpoint_is_stock_and_reproducible(
    file: Path, corpus: Path, rows: pl.DataFrame, tmp_path: Path
) -> None:
    told = {"recipe": RECIPE.model_dump(), "name": "a", "family": "b"}
    for name in ("one", "two"):
        trained = _finetuned(file, corpus, rows)
        write_checkpoint(tmp_path / name, trained, **told)
    assert checksums(tmp_path / "one") == checksums(tmp_path / "two")
    model, tokenizer = load(tmp_path / "one", "float32")
    with torch.inference_mode():
        tokens = torch.tensor(rows["tokens"][:2].to_list())
        assert torch.equal(model(tokens).logits, trained.model(tokens).logits)
    assert tokenizer("in 1999").input_ids == small_tokenizer()("in 1999").input_ids


def test_what_is_planted_is_learned(file: Path, corpus: Path, rows: pl.DataFrame) -> None:
    tokens = torch.tensor(rows["tokens"].to_list())
    before = perplexity(read_model(file), tokens)
    assert perplexity(_finetuned(file, corpus, rows, epochs=8).model, tokens) < before / 10


def test_a_model_that_does_not_read_is_refused(
    file: Path, corpus: Path, rows: pl.DataFrame
) -> None:
    with pytest.raises(InputError, match=r"(?s)perplexity of .*at most 2"):
        _finetuned(file, corpus, rows, largest_perplexity=2.0)
