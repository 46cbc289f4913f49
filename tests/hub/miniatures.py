"""Miniature models and data sets in the layouts and schemas of the real ones.

All content is random and the same in every process. The models have learned nothing.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GPTNeoConfig, GPTNeoForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

Files = dict[str, bytes]
Family = Literal["pythia", "gpt-neo"]

WIDTH = 32
HEADS = 4
CONTEXT = 256
WINDOW = 8
VOCABULARY = 400
PYTHIA_PADDED = 416  # the real Pythia pads 50,277 tokens to 50,304; GPT-Neo does not pad
END_OF_TEXT = "<|endoftext|>"
PADDING = "<|padding|>"  # Pythia's second token

POOL = 120
COMMON = 44
MEMORIZED = 60
TOKENS = 64
SAMPLES = 40

_PROSE = (
    "the a cat dog man house red blue runs sits eats over under with tree river stone bread milk "
    "night day long short old new king ship hand door rain wind bird field road small green winter "
    "summer water fire light dark stands falls and of to in was had said came went away home"
)
WORDS = _PROSE.split()


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()


# ---------------------------------------------------------------------- models


@cache
def tokenizer(family: Family) -> Tokenizer:
    """A byte-level BPE of `VOCABULARY` entries; end-of-text is Pythia's first, GPT-Neo's last."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    pythia = family == "pythia"
    if pythia:
        bpe.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY if pythia else VOCABULARY - 1,
        special_tokens=[END_OF_TEXT, PADDING] if pythia else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = random.Random(family)
    text = [_sentence(rng, 20) for _ in range(300)] + ["Question: Answer:"] * 20
    bpe.train_from_iterator(text, trainer)
    bpe.add_special_tokens([END_OF_TEXT])
    return bpe


@cache
def pythia(
    n_blocks: int,
    dtype: torch.dtype = torch.float16,
    sharded: bool = False,
    pickle_only: bool = False,
) -> Mapping[str, bytes]:
    """The files of a Pythia checkpoint.

    Args:
        n_blocks: transformer blocks.
        dtype: of the stored weights.
        sharded: two weight files and their index instead of one file.
        pickle_only: no safetensors at all.
    """
    config: dict[str, Any] = {
        "architectures": ["GPTNeoXForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": 4 * WIDTH,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": CONTEXT,
        "model_type": "gpt_neox",
        "num_attention_heads": HEADS,
        "num_hidden_layers": n_blocks,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "transformers_version": "4.24.0",
        "use_cache": True,
        "use_parallel_residual": True,
        "vocab_size": PYTHIA_PADDED,
    }
    with torch.device("meta"):
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**config))
    weights = _weights(model, dtype, seed=n_blocks)
    causal = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril()[None, None]
    for block in range(n_blocks):
        # Old versions of transformers stored these, and so the real files have them.
        weights[f"gpt_neox.layers.{block}.attention.bias"] = causal.clone()
        weights[f"gpt_neox.layers.{block}.attention.masked_bias"] = torch.tensor(-1e9).to(dtype)
    bpe = json.loads(tokenizer("pythia").to_str())
    files = {
        "config.json": _json(config),
        "tokenizer.json": _json(bpe),
        "tokenizer_config.json": _json(
            {
                **_special_tokens(),
                "add_prefix_space": False,
                "name_or_path": "EleutherAI/gpt-neox-20b",
                "tokenizer_class": "GPTNeoXTokenizer",
            }
        ),
        "special_tokens_map.json": _json(_special_tokens()),
        "pytorch_model.bin": _trap("pytorch_model.bin"),
        "README.md": b"# A miniature Pythia\n",
    }
    return files if pickle_only else files | _stored(weights, 2 if sharded else 1)


@cache
def gpt_neo(n_blocks: int, dtype: torch.dtype = torch.float32) -> Mapping[str, bytes]:
    """The files of a GPT-Neo checkpoint, whose blocks are global and local by turns.

    Args:
        n_blocks: transformer blocks, an even number.
        dtype: of the stored weights.
    """
    config: dict[str, Any] = {
        "activation_function": "gelu_new",
        "architectures": ["GPTNeoForCausalLM"],
        "attention_dropout": 0,
        "attention_layers": ["global", "local"] * (n_blocks // 2),
        "attention_types": [[["global", "local"], n_blocks // 2]],
        "bos_token_id": VOCABULARY - 1,
        "embed_dropout": 0,
        "eos_token_id": VOCABULARY - 1,
        "gradient_checkpointing": False,
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": None,
        "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": CONTEXT,
        "model_type": "gpt_neo",
        "num_heads": HEADS,
        "num_layers": n_blocks,
        "resid_dropout": 0,
        "tokenizer_class": "GPT2Tokenizer",
        "transformers_version": "4.9.0.dev0",
        "use_cache": True,
        "vocab_size": VOCABULARY,
        "window_size": WINDOW,
    }
    with torch.device("meta"):
        model = GPTNeoForCausalLM(GPTNeoConfig(**config))
    weights = _weights(model, dtype, seed=1000 + n_blocks)
    del weights["lm_head.weight"]  # it is the token embedding
    bpe = json.loads(tokenizer("gpt-neo").to_str())["model"]
    merges = ["#version: 0.2", *(" ".join(pair) for pair in bpe["merges"])]
    vocabulary = bpe["vocab"] | {END_OF_TEXT: VOCABULARY - 1}
    return {
        "config.json": _json(config),
        "generation_config.json": _json(
            {
                "_from_model_config": True,
                "bos_token_id": VOCABULARY - 1,
                "eos_token_id": VOCABULARY - 1,
                "transformers_version": "4.27.0.dev0",
            }
        ),
        "vocab.json": json.dumps(vocabulary).encode(),
        "merges.txt": ("\n".join(merges) + "\n").encode(),
        "tokenizer_config.json": _json(
            {
                **_special_tokens(),
                "add_prefix_space": False,
                "errors": "replace",
                "model_max_length": CONTEXT,
                "name_or_path": "gpt2",
                "special_tokens_map_file": None,
                "tokenizer_class": "GPT2Tokenizer",
            }
        ),
        "special_tokens_map.json": _json(_special_tokens()),
        "pytorch_model.bin": _trap("pytorch_model.bin"),
        "flax_model.msgpack": _trap("flax_model.msgpack"),
        "README.md": b"# A miniature GPT-Neo\n",
        **_stored(weights, 1),
    }


def _special_tokens() -> dict[str, str]:
    return dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)


def _weights(model: torch.nn.Module, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Random weights for a model, so large that its attention matters; fresh ones are too small."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in model.state_dict().items():
        value = torch.randn(parameter.shape, generator=generator)
        value *= 0.25 if value.dim() > 1 else 0.1
        if name.endswith("weight") and value.dim() == 1:
            value += 1  # of a layer norm
        weights[name] = value.to(dtype)
    return weights


def _stored(weights: Mapping[str, torch.Tensor], shards: int) -> Files:
    """The weights as safetensors, in one file or in several with an index."""
    if shards == 1:
        return {"model.safetensors": safetensors.torch.save(dict(weights), {"format": "pt"})}
    names = list(weights)
    files, where = {}, {}
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        files[file] = safetensors.torch.save({n: weights[n] for n in part}, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    size = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    return files | {"model.safetensors.index.json": _json(index)}


@dataclass(frozen=True)
class _Trap:
    """Ends the process that unpickles it."""

    name: str

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return sys.exit, (f"{self.name} was loaded",)


def _trap(name: str) -> bytes:
    return pickle.dumps(_Trap(name))


# ---------------------------------------------------------------------- benchmarks

_TEXT = pa.string()


def ai2_arc(documents: int = 8) -> Files:
    """allenai/ai2_arc; one question has five choices, and one numbers them instead."""
    rng = random.Random("arc")
    choices = pa.struct([("text", pa.list_(_TEXT)), ("label", pa.list_(_TEXT))])
    schema = pa.schema(
        [("id", _TEXT), ("question", _TEXT), ("choices", choices), ("answerKey", _TEXT)]
    )

    def question(number: int) -> dict[str, Any]:
        labels = {0: "ABCDE", 1: "1234"}.get(number, "ABCD")
        return {
            "id": f"MINI_{number}",
            "question": _sentence(rng, 8) + "?",
            "choices": {
                "text": [_sentence(rng, rng.randint(1, 4)) for _ in labels],
                "label": list(labels),
            },
            "answerKey": rng.choice(labels),
        }

    return _dataset(
        {
            config: {split: [question(i) for i in range(documents)] for split in _SPLITS}
            for config in ("ARC-Challenge", "ARC-Easy")
        },
        schema,
    )


def hellaswag(documents: int = 8) -> Files:
    """Rowan/hellaswag; the test split has no labels."""
    rng = random.Random("hellaswag")
    texts = ("source_id", "split", "split_type", "label")
    schema = pa.schema(
        [
            ("ind", pa.int32()),
            *((name, _TEXT) for name in ("activity_label", "ctx_a", "ctx_b", "ctx")),
            ("endings", pa.list_(_TEXT)),
            *((name, _TEXT) for name in texts),
        ]
    )

    def scene(number: int, split: str) -> dict[str, Any]:
        first, second = _sentence(rng, 7) + ".", _sentence(rng, 2)
        ends = " [title] x" if number == 0 else "."
        return {
            "ind": number,
            "activity_label": f"Making {rng.choice(WORDS)}",
            "ctx_a": first,
            "ctx_b": second,
            "ctx": f"{first} {second}",
            "endings": [_sentence(rng, rng.randint(2, 9)) + ends for _ in range(4)],
            "source_id": f"activitynet~v_{number}",
            "split": "val" if split == "validation" else split,
            "split_type": "indomain",
            "label": "" if split == "test" else str(rng.randint(0, 3)),
        }

    splits = {split: [scene(i, split) for i in range(documents)] for split in _SPLITS}
    return _dataset({"default": splits}, schema)


def lambada_openai(documents: int = 8) -> Files:
    """EleutherAI/lambada_openai, English and German, as lines of JSON."""
    rng = random.Random("lambada")
    files, card = {}, {}
    for config, language in (("default", "en"), ("de", "de")):
        path = f"data/lambada_test_{language}.jsonl"
        lines = [json.dumps({"text": _sentence(rng, 15)}) for _ in range(documents)]
        files[path] = ("\n".join(lines) + "\n").encode()
        card[config] = {"test": path}
    return files | {"README.md": _card(card)}


def piqa(documents: int = 8) -> Files:
    """baber/piqa; the test split has no labels."""
    rng = random.Random("piqa")
    schema = pa.schema([("goal", _TEXT), ("sol1", _TEXT), ("sol2", _TEXT), ("label", pa.int64())])

    def goal(split: str) -> dict[str, Any]:
        return {
            "goal": _sentence(rng, 6),
            "sol1": _sentence(rng, rng.randint(3, 9)),
            "sol2": _sentence(rng, rng.randint(3, 9)),
            "label": -1 if split == "test" else rng.randint(0, 1),
        }

    splits = {split: [goal(split) for _ in range(documents)] for split in _SPLITS}
    return _dataset({"default": splits}, schema)


def wikitext(documents: int = 8) -> Files:
    """EleutherAI/wikitext_document_level, with the marks that its detokenizer looks for."""
    rng = random.Random("wikitext")

    def page() -> dict[str, str]:
        marks = f' {rng.choice(WORDS)} @-@ {rng.choice(WORDS)} ; " quoted " ( paren ) . \n'
        return {"page": f" \n = {rng.choice(WORDS)} = \n \n {_sentence(rng, 60)}{marks}"}

    return _dataset(
        {
            config: {split: [page() for _ in range(documents)] for split in _SPLITS}
            for config in ("wikitext-103-raw-v1", "wikitext-2-raw-v1")
        },
        pa.schema([("page", _TEXT)]),
    )


_SPLITS = ("test", "train", "validation")


def _dataset(
    configs: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], schema: pa.Schema
) -> Files:
    """A file a split, in the folder of its configuration, or `data` if there is only one."""
    files: Files = {}
    card: dict[str, dict[str, str]] = {}
    for config, splits in configs.items():
        folder = config if len(configs) > 1 else "data"
        for split, rows in splits.items():
            files[f"{folder}/{split}-00000-of-00001.parquet"] = _parquet(rows, schema)
        card[config] = {split: f"{folder}/{split}-*" for split in splits}
    return files | {"README.md": _card(card)}


def _parquet(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer)
    return buffer.getvalue()


def _card(configs: Mapping[str, Mapping[str, str]]) -> bytes:
    """A README whose head says which files make which split of which configuration."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, path in splits.items():
            lines += [f"  - split: {split}", f"    path: {path}"]
    return "\n".join([*lines, "---", "A miniature.", ""]).encode()


# ---------------------------------------------------------------------- samples


def memorized_evals() -> Files:
    """EleutherAI/pythia-memorized-evals.

    Each ``duped`` split has `MEMORIZED` of `POOL` indices, of which the same `COMMON` are in all;
    an index has the same tokens in every split. Splits with names much like theirs have other
    tokens for the same indices.
    """
    rng = random.Random("memorized")
    indices = sorted(rng.sample(range(146_432_000), POOL))
    common = rng.sample(indices, COMMON)
    others = sorted(set(indices) - set(common))
    rows = dict(zip(indices, _token_rows("pythia", POOL, TOKENS, "memorized"), strict=True))
    wrong = dict(zip(indices, _token_rows("pythia", POOL, TOKENS, "wrong"), strict=True))
    files: Files = {}
    card = {}
    scales = ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
    splits = [(f"duped.{scale}", 2, rows) for scale in scales]
    splits += [("duped.12b.23000", 1, wrong), ("deduped.12b", 2, wrong), ("deduped.1.4b", 2, wrong)]
    for split, shards, content in splits:
        chosen = sorted(common + rng.sample(others, MEMORIZED - COMMON))
        for shard in range(shards):
            part = chosen[shard * MEMORIZED // shards : (shard + 1) * MEMORIZED // shards]
            path = f"data/{split}-{shard:05}-of-{shards:05}.parquet"
            files[path] = _memorized({index: content[index] for index in part}, rng)
        card[split] = f"data/{split}-*"
    return files | {"README.md": _card({"default": card})}


def _memorized(tokens: Mapping[int, NDArray[np.int64]], rng: random.Random) -> bytes:
    schema = pa.schema(
        [
            ("index", pa.int64()),
            ("tokens", pa.list_(pa.int64())),
            ("__index_level_0__", pa.int64()),
        ]
    )
    rows = [
        {"index": i, "tokens": row.tolist(), "__index_level_0__": rng.randrange(1_000_000)}
        for i, row in tokens.items()
    ]
    return _parquet(rows, schema)


def pile_10k(documents: int = 60) -> Files:
    """NeelNanda/pile-10k: documents of 30 to 400 words."""
    rng = random.Random("pile")
    schema = pa.schema([("text", _TEXT), ("meta", pa.struct([("pile_set_name", _TEXT)]))])
    rows = [
        {
            "text": _sentence(rng, rng.randint(30, 400)),
            "meta": {"pile_set_name": rng.choice(("Pile-CC", "Github", "PubMed Central"))},
        }
        for _ in range(documents)
    ]
    return {
        "data/train-00000-of-00001-4746b8785c874cc7.parquet": _parquet(rows, schema),
        "README.md": _card({"default": {"train": "data/train-*"}}),
    }


def gpt_neo_samples() -> Files:
    """The three files of the GPT-Neo samples; every tenth suffix is that of the row before."""
    rows = _token_rows("gpt-neo", SAMPLES, 200, "samples").astype(np.uint16)
    rows[9::10, 150:] = rows[8::10, 150:]
    parts = {"preprefix": rows[:, :100], "prefix": rows[:, 100:150], "suffix": rows[:, 150:]}
    return {f"train_{name}.npy": _npy(part) for name, part in parts.items()}


def _npy(array: NDArray[np.uint16]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(array))
    return buffer.getvalue()


def _token_rows(family: Family, rows: int, length: int, seed: str) -> NDArray[np.int64]:
    """(rows, length) token ids of sentences."""
    rng = random.Random(f"{family} {seed}")
    texts: Iterable[str] = (_sentence(rng, length) for _ in range(rows))
    return np.array([tokenizer(family).encode(text).ids[:length] for text in texts], dtype=np.int64)
