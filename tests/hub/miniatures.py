"""Miniature models and datasets in the recorded layouts and schemas of the real ones.

record.json holds what is known of the real repositories at the commits that the studies pin: paths,
small texts, columns, numbers of rows; `presumed` names texts that were derived from a recorded size
or taken from a neighbouring commit. All content here is random and the same in every process.
"""

import io
import json
import pickle
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import safetensors.torch
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers
from transformers import AutoConfig, AutoModelForCausalLM

from tests.own import byte_level

Files = dict[str, bytes]
Row = dict[str, Any]
Family = Literal["pythia", "gpt-neo"]


def _record() -> dict[str, dict[str, Any]]:
    """record.json; a model is as the one that it is `like`, but for what is said of it."""
    entries: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("record.json").read_text("utf-8")
    )
    for entry in entries.values():
        if "like" in entry:
            other = entries[entry.pop("like")]
            config = other["texts"]["config.json"] | entry.pop("config")
            entry |= {**other, **entry, "texts": {**other["texts"], "config.json": config}}
    return entries


RECORD = _record()
MODELS = {repo: entry for repo, entry in RECORD.items() if "texts" in entry}
EVALS = "EleutherAI/pythia-memorized-evals"

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
    rng = random.Random(family)
    text = [_sentence(rng, 20) for _ in range(300)] + ["Question: Answer:"] * 20
    if family == "pythia":
        bpe = byte_level(text, VOCABULARY, [END_OF_TEXT, PADDING])
        bpe.normalizer = normalizers.NFC()
    else:
        bpe = byte_level(text, VOCABULARY - 1)
    bpe.add_special_tokens([END_OF_TEXT])
    return bpe


@cache
def checkpoint(repo: str, n_blocks: int | None = None) -> Mapping[str, bytes]:
    """The files of a model of `RECORD`, with its layout and its texts; only sizes are smaller.

    It has as many blocks as the real one unless given.
    """
    recorded = RECORD[repo]
    texts = recorded["texts"]
    neo = texts["config.json"]["model_type"] == "gpt_neo"
    family: Family = "gpt-neo" if neo else "pythia"
    config = _smaller(texts["config.json"], n_blocks)
    bpe = json.loads(tokenizer(family).to_str())
    merges = ["#version: 0.2", *(" ".join(pair) for pair in bpe["model"]["merges"])]
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    made = {
        "config.json": _json(config),
        "tokenizer.json": _json(bpe),
        "vocab.json": _json(bpe["model"]["vocab"] | {END_OF_TEXT: VOCABULARY - 1}),
        "merges.txt": ("\n".join(merges) + "\n").encode(),
        "generation_config.json": _json(texts.get("generation_config.json", {}) | ends),
        "special_tokens_map.json": _json(texts["special_tokens_map.json"]),
        "tokenizer_config.json": _json(
            texts["tokenizer_config.json"] | ({"model_max_length": CONTEXT} if neo else {})
        ),
        "pytorch_model.bin.index.json": b"{}",
    }
    paths = recorded["files"]
    made |= _stored(_weights(config, neo), [p for p in paths if p.endswith(".safetensors")])
    return {path: made.get(path) or _other(path) for path in paths}


def pythia(n_blocks: int, sharded: bool = False, pickle_only: bool = False) -> Mapping[str, bytes]:
    """A Pythia of any depth: weights in one file, in two with an index, or as a pickle alone."""
    files = checkpoint("EleutherAI/pythia-6.9b" if sharded else "EleutherAI/pythia-70m", n_blocks)
    return {name: files[name] for name in files if not (pickle_only and "safetensors" in name)}


def gpt_neo(n_blocks: int) -> Mapping[str, bytes]:
    """A GPT-Neo of any even depth, whose blocks are global and local by turns."""
    return checkpoint("EleutherAI/gpt-neo-1.3B", n_blocks)


def _smaller(config: Mapping[str, Any], n_blocks: int | None) -> dict[str, Any]:
    """The configuration with small sizes."""
    if config["model_type"] == "gpt_neo":
        blocks = n_blocks or config["num_layers"]
        sizes = {
            "num_layers": blocks,
            "num_heads": HEADS,
            "attention_layers": ["global", "local"] * (blocks // 2),
            "attention_types": [[["global", "local"], blocks // 2]],
            "window_size": WINDOW,
            "vocab_size": VOCABULARY,
            "bos_token_id": VOCABULARY - 1,
            "eos_token_id": VOCABULARY - 1,
        }
    else:
        sizes = {
            "num_hidden_layers": n_blocks or config["num_hidden_layers"],
            "num_attention_heads": HEADS,
            "intermediate_size": 4 * WIDTH,
            "vocab_size": PYTHIA_PADDED,
        }
    return {**config, **sizes, "hidden_size": WIDTH, "max_position_embeddings": CONTEXT}


def _other(path: str) -> bytes:
    """What no loader may want: weights of other frameworks are traps."""
    if path.endswith((".bin", ".msgpack", ".ot")):
        return pickle.dumps(_Trap())
    return f"a miniature of {path}\n".encode()


def _weights(config: Mapping[str, Any], neo: bool) -> dict[str, torch.Tensor]:
    """Random weights, so large that attention matters, and what old versions stored beside them."""
    dtype = torch.float32 if neo else torch.float16
    blocks = config["num_layers" if neo else "num_hidden_layers"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    generator = torch.Generator().manual_seed(1000 * neo + blocks)
    weights = {}
    for name, parameter in model.state_dict().items():
        value = torch.randn(parameter.shape, generator=generator)
        value *= 0.25 if value.dim() > 1 else 0.1
        if name.endswith("weight") and value.dim() == 1:
            value += 1  # of a layer norm
        weights[name] = value.to(dtype)
    if neo:
        del weights["lm_head.weight"]  # it is the token embedding
    causal = torch.ones(CONTEXT, CONTEXT, dtype=torch.uint8).tril()[None, None]
    for block in range(blocks):
        within = f"transformer.h.{block}.attn" if neo else f"gpt_neox.layers.{block}"
        name = f"{within}.attention"
        weights[f"{name}.masked_bias"] = torch.tensor(-1e9).to(dtype)
        if not neo or block % 2 == 0:  # local blocks have none
            weights[f"{name}.bias"] = causal.clone()
        if not neo:
            turned = int(config["rotary_pct"] * config["hidden_size"] / HEADS)
            weights[f"{name}.rotary_emb.inv_freq"] = torch.ones(turned // 2, dtype=dtype)
    return weights


def _stored(weights: Mapping[str, torch.Tensor], paths: Sequence[str]) -> Files:
    """The weights as safetensors of these names, with an index where there are several."""
    names = list(weights)
    files, where = {}, {}
    for number, path in enumerate(paths):
        part = names[number * len(names) // len(paths) : (number + 1) * len(names) // len(paths)]
        files[path] = safetensors.torch.save({n: weights[n] for n in part}, {"format": "pt"})
        where |= dict.fromkeys(part, path)
    size = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    return files | {"model.safetensors.index.json": _json(index)}


class _Trap:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return sys.exit, ("a pickle was loaded",)


# ---------------------------------------------------------------------- datasets

DOCUMENTS = 8
"""Of every split of a dataset of a benchmark."""


def _arc(rng: random.Random, number: int, path: str) -> Row:
    """Questions have three, four or five choices, some are numbered."""
    labels = {0: "ABCDE", 1: "1234", 2: "ABC"}.get(number, "ABCD")
    texts = [_sentence(rng, rng.randint(1, 4)) for _ in labels]
    return {
        "id": f"MINI_{number}",
        "question": _sentence(rng, 8) + "?",
        "choices": {"text": texts, "label": list(labels)},
        "answerKey": rng.choice(labels),
    }


def _hellaswag(rng: random.Random, number: int, path: str) -> Row:
    """The test split has no labels."""
    split = next(split for split in ("test", "train", "validation") if split in path)
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


def _lambada(rng: random.Random, number: int, path: str) -> Row:
    """Five languages, English twice, as parquet and as lines of JSON."""
    language = (re.search(r"[_/](de|es|fr|it)\.", path) or ["", "en"])[1]
    return {"text": f"{language} {_sentence(rng, 15)}"}


def _piqa(rng: random.Random, number: int, path: str) -> Row:
    """The test split has no labels."""
    texts = {"goal": 6, "sol1": rng.randint(3, 9), "sol2": rng.randint(3, 9)}
    label = -1 if "test" in path else rng.randint(0, 1)
    return {**{name: _sentence(rng, words) for name, words in texts.items()}, "label": label}


def _wikitext(rng: random.Random, number: int, path: str) -> Row:
    """With the marks that lm-eval's detokenizer looks for."""
    marks = f' {rng.choice(WORDS)} @-@ {rng.choice(WORDS)} ; " quoted " ( paren ) . \n'
    return {"page": f" \n = {rng.choice(WORDS)} = \n \n {_sentence(rng, 60)}{marks}"}


def _pile(rng: random.Random, number: int, path: str) -> Row:
    """Documents of 30 to 400 words."""
    name = rng.choice(("Pile-CC", "Github", "PubMed Central"))
    return {"text": _sentence(rng, rng.randint(30, 400)), "meta": {"pile_set_name": name}}


ROWS: dict[str, tuple[Callable[[random.Random, int, str], Row], int]] = {
    "allenai/ai2_arc": (_arc, DOCUMENTS),
    "Rowan/hellaswag": (_hellaswag, DOCUMENTS),
    "EleutherAI/lambada_openai": (_lambada, DOCUMENTS),
    "baber/piqa": (_piqa, DOCUMENTS),
    "EleutherAI/wikitext_document_level": (_wikitext, DOCUMENTS),
    "NeelNanda/pile-10k": (_pile, 60),
}
"""Repository -> what makes a row of a file, and the rows of each file."""


@cache
def dataset(repo: str) -> Mapping[str, bytes]:
    """The files of a dataset of `ROWS`, each with as many rows as it says, or those of `EVALS`."""
    if repo == EVALS:
        return _memorized_evals()
    row, count = ROWS[repo]
    files: Files = {}
    for path in RECORD[repo]["files"]:
        rng = random.Random(f"{repo} {path}")
        if path.endswith(".parquet"):
            files[path] = parquet([row(rng, number, path) for number in range(count)])
        elif path.endswith(".jsonl"):
            lines = [json.dumps(row(rng, number, path)) + "\n" for number in range(count)]
            files[path] = "".join(lines).encode()
        elif path == "README.md":
            files[path] = _readme(RECORD[repo].get("front_matter", ""), count)
        else:
            files[path] = b"{}" if path == "dataset_infos.json" else _other(path)
    return files


def _readme(front_matter: str, documents: int) -> bytes:
    """The recorded front matter, with as many documents in every split as the miniature has."""
    text = re.sub(r"num_examples: \d+", f"num_examples: {documents}", front_matter)
    return (f"---\n{text}---\n" if text else "").encode() + b"A miniature.\n"


def parquet(rows: Mapping[str, Sequence[Any]] | Sequence[Row]) -> bytes:
    """The file of a table, told by its columns or its rows."""
    buffer = io.BytesIO()
    pl.DataFrame(rows).write_parquet(buffer)
    return buffer.getvalue()


# ---------------------------------------------------------------------- samples


def _memorized_evals() -> Files:
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
    scales = ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
    splits = [(f"duped.{scale}", 3 if scale == "6.9b" else 2, rows) for scale in scales]
    splits += [("duped.12b.43000", 1, wrong), ("deduped.12b.83000", 1, wrong)]
    splits += [("deduped.12b", 2, wrong), ("deduped.1.4b", 2, wrong), ("deduped.1b", 2, wrong)]
    splits += [("deduped.1b.new", 2, wrong)]
    # the names of some shards are recorded, with the 16 hexadecimal digits at their ends
    ends = re.compile(r"-[0-9a-f]{16}\.parquet$")
    names = {ends.sub(".parquet", path): path for path in RECORD[EVALS]["files"]}
    for split, shards, content in splits:
        chosen = sorted(common + rng.sample(others, MEMORIZED - COMMON))
        for shard in range(shards):
            part = chosen[shard * MEMORIZED // shards : (shard + 1) * MEMORIZED // shards]
            path = f"data/{split}-{shard:05}-of-{shards:05}.parquet"
            digits = "" if re.search(r"b\.\d+$", split) else f"-{rng.getrandbits(64):016x}"
            named = names.get(path, path.removesuffix(".parquet") + f"{digits}.parquet")
            files[named] = parquet(
                [{"index": i, "tokens": content[i].tolist(), "__index_level_0__": i} for i in part]
            )
    card = _readme(RECORD[EVALS]["front_matter"], 0)
    return files | {"README.md": card, ".gitattributes": _other(".gitattributes")}


def gpt_neo_samples() -> Files:
    """The three files of the GPT-Neo samples; every tenth suffix is that of the row before."""
    rows = _token_rows("gpt-neo", SAMPLES, 200, "samples").astype(np.uint16)
    rows[9::10, 150:] = rows[8::10, 150:]
    parts = {"preprefix": rows[:, :100], "prefix": rows[:, 100:150], "suffix": rows[:, 150:]}
    files = {}
    for name, part in parts.items():
        buffer = io.BytesIO()
        np.save(buffer, np.asfortranarray(part))
        files[f"train_{name}.npy"] = buffer.getvalue()
    return files


def _token_rows(family: Family, rows: int, length: int, seed: str) -> NDArray[np.int64]:
    """(rows, length) token ids of sentences."""
    rng = random.Random(f"{family} {seed}")
    texts = [_sentence(rng, length) for _ in range(rows)]
    return np.array([tokenizer(family).encode(text).ids[:length] for text in texts], dtype=np.int64)
