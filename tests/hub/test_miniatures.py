"""The miniatures are what the real ones are to the libraries that load them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.hub import miniatures

SENTENCE = "the old ship stands under a red tree"


def written(files: Mapping[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("files", "blocks", "dtype"),
    [
        pytest.param(miniatures.pythia(6), 6, torch.float16, id="pythia"),
        pytest.param(miniatures.pythia(6, sharded=True), 6, torch.float16, id="sharded"),
        pytest.param(miniatures.gpt_neo(12), 12, torch.float32, id="gpt-neo"),
    ],
)
def test_a_model_loads_and_its_attention_matters(
    files: Mapping[str, bytes], blocks: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = written(files, tmp_path)
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, use_safetensors=True, local_files_only=True, output_loading_info=True
    )
    unused = {name for name in report.pop("unexpected_keys") if "attention" not in name}
    assert not any([unused, *report.values()]), report
    assert (model.config.num_hidden_layers, model.dtype) == (blocks, dtype)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert len(tokenizer) == miniatures.VOCABULARY <= model.config.vocab_size
    assert tokenizer.decode(tokenizer(SENTENCE)["input_ids"]) == SENTENCE
    assert tokenizer.convert_tokens_to_ids(miniatures.END_OF_TEXT) == model.config.eos_token_id
    tokens = torch.tensor([tokenizer(" ".join([SENTENCE] * 25))["input_ids"][:200]])
    assert tokens.shape == (1, 200)
    changed = tokens.clone()
    changed[0, :190] = tokens[0, :190].flip(0)
    with torch.no_grad():
        before, after = (model.float()(t).logits[0, -1].softmax(-1) for t in (tokens, changed))
    assert before.isfinite().all()
    assert (before - after).abs().sum() > 0.1


def test_a_gpt_neo_has_the_old_tokenizer_and_a_pickle_only_model_no_weights_but_one() -> None:
    assert not {"tokenizer.json", "model.safetensors.index.json"} & set(miniatures.gpt_neo(2))
    assert {"vocab.json", "merges.txt", "flax_model.msgpack"} < set(miniatures.gpt_neo(2))
    files = miniatures.pythia(2, pickle_only=True)
    assert not any("safetensors" in name for name in files)
    with pytest.raises(SystemExit, match=r"pytorch_model\.bin was loaded"):
        pickle.loads(files["pytorch_model.bin"])


def test_sharing_weights_out_changes_none(tmp_path: Path) -> None:
    whole, shards = tmp_path / "whole", tmp_path / "shards"
    models = []
    for folder, sharded in ((whole, False), (shards, True)):
        folder.mkdir()
        written(miniatures.pythia(2, sharded=sharded), folder)
        models.append(AutoModelForCausalLM.from_pretrained(folder, local_files_only=True))
    one, other = (model.state_dict() for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_memorized_splits_share_what_they_should() -> None:
    files = miniatures.memorized_evals()

    def split(name: str) -> pl.DataFrame:
        shards = [data for path, data in files.items() if path.startswith(f"data/{name}-")]
        assert len(shards) == (3 if name.endswith("6.9b") else 2)
        return pl.concat(pl.read_parquet(io.BytesIO(shard)) for shard in shards)

    names = ["duped." + s for s in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")]
    frames = [split(name) for name in names]
    for frame in frames:
        assert frame.schema == {
            "index": pl.Int64,
            "tokens": pl.List(pl.Int64),
            "__index_level_0__": pl.Int64,
        }
        assert frame.height == frame["index"].n_unique() == miniatures.MEMORIZED
        assert frame["tokens"].list.len().unique().to_list() == [miniatures.TOKENS]
        tokens = frame["tokens"].explode()
        assert 0 < tokens.min() <= tokens.max() < miniatures.VOCABULARY
    sets = [set(frame["index"]) for frame in frames]
    assert miniatures.COMMON <= len(set.intersection(*sets)) < miniatures.MEMORIZED
    assert len(set(map(frozenset, sets))) == len(sets)
    together = pl.concat(frames).group_by("index").agg(pl.col("tokens").n_unique())
    assert together["tokens"].unique().to_list() == [1]
    assert together.height > miniatures.MEMORIZED
    both = split("deduped.12b").join(frames[-1], on="index")
    assert both.height >= miniatures.COMMON
    assert (both["tokens"] != both["tokens_right"]).all()


def test_the_gpt_neo_samples_have_the_real_shapes() -> None:
    files = miniatures.gpt_neo_samples()
    lengths = {"train_preprefix.npy": 100, "train_prefix.npy": 50, "train_suffix.npy": 50}
    arrays = {name: np.load(io.BytesIO(data)) for name, data in files.items()}
    assert {name: array.shape for name, array in arrays.items()} == {
        name: (miniatures.SAMPLES, length) for name, length in lengths.items()
    }
    for array in arrays.values():
        assert array.dtype == np.uint16
        assert array.flags.f_contiguous
        assert array.max() < miniatures.VOCABULARY - 1  # no end of text
    rows = np.concatenate(list(arrays.values()), axis=1)
    assert len(np.unique(rows, axis=0)) == miniatures.SAMPLES
    assert len(np.unique(arrays["train_suffix.npy"], axis=0)) == miniatures.SAMPLES - 4


def test_pile_10k_has_documents_of_all_lengths() -> None:
    files = miniatures.pile_10k()
    (data,) = [data for path, data in files.items() if path.endswith(".parquet")]
    frame = pl.read_parquet(io.BytesIO(data))
    assert frame.schema == {"text": pl.String, "meta": pl.Struct({"pile_set_name": pl.String})}
    words = frame["text"].str.split(" ").list.len()
    assert frame.height == frame["text"].n_unique() == 60
    assert 30 <= words.min() < 64
    assert 250 < words.max() <= 400
