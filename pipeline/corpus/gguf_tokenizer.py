"""The tokenizer of a GGUF file, mended where transformers reads it wrongly."""

from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pipeline.workflow.errors import bad_input

KINDS = ("smollm",)
"""Values of ``tokenizer.ggml.pre`` that are known here."""


def read_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file.

    transformers ignores ``tokenizer.ggml.pre``, which names the way a text is split before merges
    are looked up, and takes GPT-2's. ``smollm`` is GPT-2's with digits one by one, so that white
    space before a digit is split otherwise.

    Source: llama.cpp, `llm_tokenizer_bpe`, LLAMA_VOCAB_PRE_TYPE_SMOLLM.

    Raises:
        InputError: the text is split in a way that is not known here.
    """
    field = GGUFReader(file).fields.get("tokenizer.ggml.pre")
    kind = field.contents() if field else None
    if kind not in KINDS:
        raise bad_input(
            f"{file.name}: tokenizer.ggml.pre",
            str(kind),
            "one of " + ", ".join(KINDS),
            "add to pipeline/corpus/gguf_tokenizer.py how this one splits a text",
        )
    tokenizer: Any = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False
    )
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    read: PreTrainedTokenizerFast = tokenizer
    return read
