"""Greedy continuations against the engine, sampled ones against a plain loop."""

import copy
import math
from contextlib import nullcontext

import polars as pl
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pipeline.interventions import completion
from pipeline.interventions.editing import bypassed
from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.measure import generations, schemas
from pipeline.measure.generations import distinct_bigrams, interventions_at, measure
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.oracle import plain

NEW_TOKENS = 6
PROMPTS = ["a cat", "e", "dog dog dog"]
END = "<|endoftext|>"
NAMES = ["baseline", "block-00", "block-02", "block-04"]
DEPTHS = [1, 0, 0.5]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte, for 60 of the bytes: the letters, the space, and those of é and ê."""
    symbols = [END, *"abcdefghijklmnopqrstuvwxyzĠÃ©ªABCDEFGHIJKLMNOPQRSTUVWXYZ0123"]
    bpe = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END)


def flat(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that gives each of the 61 tokens a fair share: the 11 last matter too."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 0.3)
    return model


def column(frame: pl.DataFrame, name: str, **where: object) -> list:
    return frame.filter(**where)[name].to_list()


def test_the_rows(neox, tokenizer, tmp_path):
    told = []
    frame = measure(
        neox, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 0, lambda *each: told.append(each)
    )
    tables.write(frame, tmp_path / "g.parquet", schemas.GENERATIONS, {})  # checks the schema
    assert list(frame.columns) == list(schemas.GENERATIONS)
    assert frame.select("intervention", "prompt_id", "decoding").rows() == [
        (name, i, how) for name in NAMES for i in range(3) for how in ("greedy", "sampled")
    ]
    assert told == [(i, 24) for i in range(1, 25)]
    for row in frame.iter_rows(named=True):
        assert row["prompt"] == PROMPTS[row["prompt_id"]] == tokenizer.decode(row["prompt_tokens"])
        assert len(row["continuation"]) == NEW_TOKENS
        assert row["text"] == tokenizer.decode(row["continuation"])
        where = {"prompt_id": row["prompt_id"], "decoding": row["decoding"]}
        (baseline,) = column(frame, "continuation", intervention="baseline", **where)
        same = [a == b for a, b in zip(row["continuation"], baseline, strict=True)]
        assert row["first_difference"] == (None if all(same) else same.index(False))
        # collapse is measured by the unmodified model
        tokens = torch.tensor([row["prompt_tokens"] + row["continuation"]])
        labels = tokens.clone()
        labels[:, : len(row["prompt_tokens"])] = -100  # which transformers leaves out of its loss
        loss = neox(tokens, labels=labels).loss.item()
        assert row["baseline_perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert frame["first_difference"].n_unique() > 3


def test_differences_are_marked_by_token_and_by_character(neox, tokenizer, monkeypatch):
    texts = {
        "baseline, prompt 0, greedy": "aéa",
        "baseline, prompt 0, sampled": "abcd",
        "block-00, prompt 0, greedy": "aêa",  # the second byte of the accent differs
        "block-00, prompt 0, sampled": "abcd",
        "block-04, prompt 0, greedy": "aéb",
        "block-04, prompt 0, sampled": "bbcd",
    }
    monkeypatch.setattr(generations, "_continue", lambda *each: tokenizer.encode(texts[each[-1]]))
    frame = measure(neox, tokenizer, ["a"], [0, 1], 4, 0)
    assert frame["text"].to_list() == list(texts.values())
    assert frame["first_difference"].to_list() == [None, None, 2, None, 3, 0]
    assert frame["first_difference_character"].to_list() == [None, None, 1, None, 2, 0]


def test_end_of_text_in_a_prompt_is_read_and_shown(neox, tokenizer, monkeypatch):
    monkeypatch.setattr(generations, "_continue", lambda *_: [1, 0, 27, 2])
    frame = measure(neox, tokenizer, [END + "a"], [], 4, 0)
    assert frame["prompt_tokens"].to_list() == [[0, 1]] * 2
    assert frame["text"].to_list() == [f"a{END} b"] * 2


@pytest.mark.parametrize(
    ("tokens", "share"), [([4], 1), ([4, 5, 6], 1), ([4, 4, 4, 4, 4], 0.25), ([4, 5, 4, 5], 2 / 3)]
)
def test_distinct_bigrams(tokens, share):
    assert distinct_bigrams(tokens) == share


@pytest.mark.parametrize("stop", [0, "likely"])
def test_greedy_is_what_the_engine_completes(model, tokenizer, stop):
    model = copy.deepcopy(model)
    if stop == "likely":  # what the models would write soon: ends nothing, and is never chosen
        model.generation_config.eos_token_id = None
        free = measure(model, tokenizer, PROMPTS, [], NEW_TOKENS, 0)
        stop = sorted({made[1] for made in column(free, "continuation", decoding="greedy")})
    model.generation_config.eos_token_id = stop
    frame = measure(model, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 0)
    interventions = [BASELINE, *(bypass(f"block-0{b}", (b,)) for b in (0, 2, 4))]
    for i, prompt in enumerate(PROMPTS):
        row = tokenizer.encode(prompt) + [7] * NEW_TOKENS
        made = completion.complete(model, torch.tensor([row]), NEW_TOKENS, interventions)
        greedy = column(frame, "continuation", prompt_id=i, decoding="greedy")
        assert greedy == made.continuation[:, 0].tolist()
    never = stop if isinstance(stop, list) else [stop]
    assert not frame["continuation"].explode().is_in(never).any()


def test_half_precision(model, tokenizer):
    model, prompts = copy.deepcopy(model).bfloat16(), PROMPTS[:1]
    frame = measure(model, tokenizer, prompts, DEPTHS, NEW_TOKENS, 0)
    assert frame.equals(measure(model, tokenizer, prompts, DEPTHS, NEW_TOKENS, 0))
    row = torch.tensor([tokenizer.encode(prompts[0]) + [7] * NEW_TOKENS])
    made = plain.complete(model, row, NEW_TOKENS, interventions_at(DEPTHS, 5), 1)
    greedy = column(frame, "continuation", decoding="greedy")
    assert greedy == made.continuation[:, 0].tolist()


def test_samples_are_those_of_a_plain_loop(model, tokenizer):
    model = flat(model)
    frame = measure(model, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 6)
    expected = []
    for intervention in interventions_at(DEPTHS, 5):
        for i, prompt in enumerate(PROMPTS):
            tokens = tokenizer.encode(prompt)
            read = len(tokens)
            with bypassed(model, intervention), generations._seeded(model.device, f"6 {i}"):
                for _ in range(NEW_TOKENS):
                    with torch.no_grad():
                        logits = model(torch.tensor([tokens])).logits[0, -1]
                    logits[0] = -torch.inf  # end-of-text
                    tokens.append(int(torch.multinomial(logits.softmax(-1), 1)))
            expected.append(tokens[read:])
    assert column(frame, "continuation", decoding="sampled") == expected


def test_samples_depend_on_the_seed_and_the_prompts_position_alone(neo, tokenizer):
    frame = measure(neo, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 0)
    torch.rand(3)
    assert frame.equals(measure(neo, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 0))

    fewer = measure(neo, tokenizer, PROMPTS[:2], [0.5], NEW_TOKENS, 0)
    some = pl.col("intervention").is_in(["baseline", "block-02"])
    assert fewer.equals(frame.filter(some, pl.col("prompt_id") < 2))

    other = measure(neo, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 1)
    for decoding, changed in [("greedy", False), ("sampled", True)]:
        ours, theirs = (column(each, "continuation", decoding=decoding) for each in (frame, other))
        assert all((a != b) == changed for a, b in zip(ours, theirs, strict=True))

    # the same prompt twice draws twice, and seeds do not shift from one prompt to the next
    drawn = set()
    for seed in range(3):
        twice = measure(flat(neo), tokenizer, ["e"] * 3, [], NEW_TOKENS, seed)
        drawn |= {tuple(made) for made in column(twice, "continuation", decoding="sampled")}
    assert len(drawn) == 9


def test_the_models_own_generation_configuration_does_not_act(neo, tokenizer, capfd):
    expected = measure(neo, tokenizer, PROMPTS, [0.5], NEW_TOKENS, 0)
    model = copy.deepcopy(neo)
    model.generation_config = GenerationConfig(
        eos_token_id=0, do_sample=True, temperature=0.2, top_k=2, top_p=0.5, min_p=0.3,
        repetition_penalty=3.0, no_repeat_ngram_size=1, bad_words_ids=[[5]], num_beams=2,
        suppress_tokens=[1, 2, 3], max_length=8, forced_eos_token_id=0,
    )  # fmt: skip
    assert expected.equals(measure(model, tokenizer, PROMPTS, [0.5], NEW_TOKENS, 0))
    assert capfd.readouterr().err == ""  # transformers warns there


def state(model: PreTrainedModel) -> tuple:
    hooks = [
        (len(each._forward_hooks), len(each._forward_pre_hooks), each.training)
        for each in model.modules()
    ]
    with torch.inference_mode():
        logits = model(torch.tensor([[1, 2, 3]])).logits.tolist()
    config = model.generation_config
    return hooks, logits, id(config), config.to_dict(), sorted(vars(model))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_random_state_are_as_before(neox, tokenizer, monkeypatch, fails):
    before, draws = state(neox), torch.get_rng_state()
    sample, made = torch.multinomial, []

    def stop(*arguments, **more):
        made.append(sample(*arguments, **more))
        if fails and len(made) == NEW_TOKENS * 3 + 2:  # in the middle of a bypass
            raise RuntimeError("stop")
        return made[-1]

    monkeypatch.setattr(torch, "multinomial", stop)
    with pytest.raises(RuntimeError, match="stop") if fails else nullcontext():
        measure(neox, tokenizer, PROMPTS, DEPTHS, NEW_TOKENS, 0)
    assert made
    assert state(neox) == before
    assert torch.equal(torch.get_rng_state(), draws)


@pytest.mark.parametrize(
    ("depths", "n_blocks", "blocks"),
    [
        ([0, 0.5, 1], 5, [0, 2, 4]),
        ([1, 0.5, 0, 0.5], 5, [0, 2, 4]),
        ([0, 0.5, 1], 12, [0, 6, 11]),
        ([0.1, 0.12, 0.13], 5, [0, 1]),
        ([0.5], 2, [0]),
        ([0.5], 4, [2]),
        ([0, 0.3, 1], 1, [0]),
        ([], 5, []),
    ],
)
def test_depths_fall_on_blocks(depths, n_blocks, blocks):
    names = [f"block-{block:02d}" for block in blocks]
    expected = [bypass(name, (block,)) for name, block in zip(names, blocks, strict=True)]
    assert list(interventions_at(depths, n_blocks)) == [BASELINE, *expected]


@pytest.mark.parametrize(
    ("prompts", "depths", "new_tokens", "message"),
    [
        ([], [0], 3, r"1 problem .*\n- prompts\n.*none"),
        (["a", ""], [0], 3, r"1 problem .*\n- prompt 1, ''\n.*no tokens"),
        (["€"], [0], 3, r"prompt 0, '€'\n.*no tokens"),
        (["a" * 30], [0], 11, r"30 tokens and 11 new ones\n.*at most 40 together"),
        (["a"], [0], 0, r"new tokens\n.*0\n"),
        (["a"], [0, -0.1], 3, r"1 problem .*\n- depths\n.*-0\.1\n"),
        (["a"], [1.5], 3, r"depths\n.*1\.5\n"),
        (["a"], [math.nan], 3, r"depths\n.*nan\n"),
        (["", "a" * 50], [7], 0, "4 problems"),
    ],
)
def test_what_cannot_be_done_is_refused(neox, tokenizer, prompts, depths, new_tokens, message):
    with pytest.raises(InputError, match=message):
        measure(neox, tokenizer, prompts, depths, new_tokens, 0)


def test_a_continuation_may_fill_the_context(neox, tokenizer):
    made = measure(neox, tokenizer, ["a" * 30], [], 10, 0)["continuation"]
    assert made.list.len().to_list() == [10, 10]


def test_another_models_tokenizer_is_refused(neox, tokenizer):
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["zebra"])
    with pytest.raises(InputError, match=r"token id 61\n.*below 61"):
        measure(neox, larger, ["a zebra"], [0], 3, 0)


def test_an_end_of_text_beyond_the_vocabulary_is_ignored_in_words(tokenizer):
    other = GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_embd=8, n_layer=1, n_head=1, n_positions=40)
    ).eval()  # whose end-of-text is 50256
    with pytest.warns(UserWarning, match=r"50256.*outside of the vocabulary of 61"):
        made = measure(other, tokenizer, ["a"], [0], 3, 0)
    assert made["continuation"].list.len().to_list() == [3] * len(made)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("later", [False, True])
def test_logits_that_are_not_finite_are_refused(neox, tokenizer, value, later):
    broken = copy.deepcopy(neox)
    with torch.no_grad():
        if later:  # what it reads when it has written its first token
            first = measure(neox, tokenizer, ["a"], [], 1, 0)["continuation"][0][0]
            assert first != tokenizer.encode("a")[0]
            broken.gpt_neox.embed_in.weight[first] = value
        else:
            broken.gpt_neox.final_layer_norm.bias[0] = value
    where = r"baseline, prompt 0, greedy\n.*NaN" if later else "NaN or infinity in what the head"
    with pytest.raises(InputError, match=where):
        measure(broken, tokenizer, ["a"], [0.5], 3, 0)


def test_a_model_in_training_is_refused(neox, tokenizer):
    with pytest.raises(ValueError, match="training mode"):
        measure(copy.deepcopy(neox).train(), tokenizer, ["a"], [0], 3, 0)
