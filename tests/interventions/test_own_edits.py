"""Edits of one's own: fifteen, for ten families, against a plain loop; and five wrong ones."""

import copy
import shutil
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from pipeline.interventions import Group, Intervention, bypassed, complete, patch, score, sweep
from pipeline.interventions.edits import edit, rule_of
from pipeline.interventions.tokenwise import look
from pipeline.workflow.errors import InputError
from tests.families import BLOCKS, cases, tiny
from tests.interventions.cases import SUFFIX, half_remembered, multiple_choice, rounding, unchanged
from tests.oracle import own

HERE = Path(__file__).parent / "project"
FILE = "edits/mine.py"
FAMILIES = (
    "gpt_neox", "gpt_neo", "gpt2", "llama", "qwen2", "opt", "bloom", "gptj", "phi3", "gemma2",
)  # fmt: skip
EDITS = (
    "halve", "rotate", "steer", "negate", "towards_the_mean", "half_identity", "half_skip",
    "squash", "scale_values", "sharpen", "uniform", "permute", "project_out", "between",
    "from_other",
)  # fmt: skip
"""Of every site, and with all that an edit can need."""


@pytest.fixture
def project(monkeypatch, tmp_path):
    """A project's folder with the file of edits, in which the test works."""
    shutil.copytree(HERE / "edits", tmp_path / "edits")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@cache
def twin(family):
    """Another model of the same shape."""
    other = copy.deepcopy(tiny(family))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.7)
    return other


def listed():
    """Every edit in a block of its own and in two, limited in every way, and mixed."""
    rules = {name: rule_of(f"{FILE}:{name}") for name in EDITS[:-1]}
    groups = [
        *(Group((2,), rule) for rule in rules.values()),
        Group((1, 3), rules["halve"], heads=(0, 2)),
        Group((2,), rules["squash"], neurons=(1, 7, 30)),
        Group((0, 4), rules["steer"], positions="suffix"),
        Group((1,), rules["permute"], positions="prefix"),
        Group((3,), rules["negate"], positions="last"),
        Group((4,), rules["negate"], positions="suffix"),  # in the last block
        Group((1,), "zero", heads=(3,)),
        Group((2,), "mean", heads=(0,)),
        Group((3,), "mlp-zero", neurons=(0, 5)),
        Group((1,), "mlp-mean", neurons=(2,)),
        Group((2, 3), "skip", positions="suffix"),
    ]
    return [sweep(BLOCKS, [group])[1] for group in groups]


def patches(family, tokens):
    """Patches and, for the plain loop, the model and the tokens of their source."""
    stock, other, text = tiny(family), twin(family), tokens[3]
    yield Intervention("path", {1: "zero", 3: patch("baseline")}), lambda read: (stock, read)
    for site in ("attention", "mlp", "block"):
        yield Intervention(f"twin-{site}", {2: patch(other, site)}), lambda read: (other, read)
    sample = Intervention("sample", {1: patch(text, "block")}, positions="prefix")
    yield sample, lambda read: (stock, text[None, : read.shape[1]])
    edits = {0: rule_of(f"{FILE}:halve"), 2: patch(other), 4: "zero"}
    yield Intervention("mixed", edits, positions="suffix"), lambda read: (other, read)


@pytest.mark.parametrize("family", cases(FAMILIES))
def test_tokens_are_those_of_a_plain_loop(family, project):
    model, tolerance = tiny(family), rounding(tiny(family))
    tokens = half_remembered(model)
    pairs = [*((one, None) for one in listed()), *patches(family, tokens)]
    with unchanged(model):
        ours = complete(model, tokens, SUFFIX, [one for one, _ in pairs])
    baseline = complete(model, tokens, SUFFIX, sweep(BLOCKS, [])).continuation[0]
    moved = 0
    for number, (one, source) in enumerate(pairs):
        token, margin, log_prob = own.complete(model, tokens, SUFFIX, one.placed, source)
        sure = margin > 4 * tolerance
        assert sure.float().mean() > 0.7, one.name
        assert torch.equal(ours.continuation[number][sure], token[sure]), one.name
        wide = 8 * tolerance * SUFFIX
        torch.testing.assert_close(
            ours.suffix_log_prob[number], log_prob, rtol=0, atol=wide, msg=one.name
        )
        moved += bool((token != baseline).any())
    assert moved > 0.8 * len(pairs)


@pytest.mark.parametrize("family", cases(["llama", "gpt_neo"]))
def test_scores_and_looks_are_of_the_same_states(family, project):
    model = tiny(family)
    tokens, tolerance = half_remembered(model), rounding(model)
    patched = [one for one, _ in patches(family, tokens) if one.name != "sample"]
    listed_here = [*listed(), *patched]
    completed = complete(model, tokens, SUFFIX, listed_here)
    requests = [(row[:-SUFFIX].tolist(), row[-SUFFIX:].tolist()) for row in tokens]
    scored = score(model, requests, listed_here, calibration_tokens=tokens).log_prob
    wide = 4 * tolerance * SUFFIX
    torch.testing.assert_close(scored, completed.suffix_log_prob, rtol=0, atol=wide)
    seen = look(model, tokens, SUFFIX, [*sweep(BLOCKS, []), *listed_here], tokens)
    looked = seen.log_prob[1:].double().sum(-1)
    torch.testing.assert_close(looked, completed.suffix_log_prob, rtol=0, atol=wide)
    many = score(model, multiple_choice(), listed_here, calibration_tokens=tokens).log_prob
    one = score(model, multiple_choice()[3:5], listed_here, calibration_tokens=tokens).log_prob
    torch.testing.assert_close(many[:, 3:5], one, rtol=0, atol=wide)


def test_an_edit_holds_while_the_context_lasts(project):
    model, tokens = tiny("llama"), half_remembered(tiny("llama"))
    one = sweep(BLOCKS, [Group((1, 3), rule_of(f"{FILE}:halve"))])[1]
    with bypassed(model, one), torch.inference_mode():
        inside = model(tokens[:, :-1], use_cache=False).logits.log_softmax(-1)
    picked = inside[:, -SUFFIX:].gather(-1, tokens[:, -SUFFIX:, None]).double().sum((1, 2))
    expected = complete(model, tokens, SUFFIX, [one]).suffix_log_prob[0]
    torch.testing.assert_close(picked, expected, rtol=0, atol=2e-4 * SUFFIX)
    for odd in (
        Intervention("odd", {1: patch()}),
        Intervention("odd", {1: "zero"}, positions="last"),
    ):
        with pytest.raises(InputError, match="of all positions"), bypassed(model, odd):
            pass


def test_a_wrong_file_is_refused_with_the_reason(project):
    tokens = half_remembered(tiny("llama"), 2)
    pattern = "from pipeline.interventions import edit\n@edit(site='pattern')\ndef f(here): ..."
    for name, code, message in (
        ("edits/other.py:halve", None, r"no file edits/other\.py"),
        ("edits/mine.py:third", None, "nothing of that name"),
        ("edits/unmarked.py:f", "def f(here): return here.now", "a function in edits"),
        ("edits/failing.py:f", "import nothing_of_that_name", "ModuleNotFoundError"),
        ("edits/pattern.py:f", pattern, "never return"),
    ):
        if code:
            (project / name.partition(":")[0]).write_text(code)
        with pytest.raises(InputError, match=message):
            complete(tiny("llama"), tokens, SUFFIX, sweep(BLOCKS, [Group("each", name)]))


def test_a_file_outside_of_the_folder_is_refused(project):
    outside = project / "outside.py"
    shutil.copy(project / FILE, outside)
    (project / "edits/link.py").symlink_to(outside)
    for name in ("../outside.py:halve", "edits/../outside.py:halve", "/edits/mine.py:halve"):
        with pytest.raises(ValueError, match=r"edits/FILE\.py"):
            Group("each", name)
    with pytest.raises(InputError, match="that lies in"):
        rule_of("edits/link.py:halve")


def test_what_a_model_or_an_edit_does_not_have_is_refused(project):
    model, tokens = tiny("llama"), half_remembered(tiny("llama"))
    halve, negate = rule_of(f"{FILE}:halve"), rule_of(f"{FILE}:negate")
    for group, message in (
        (Group("each", negate, heads=(0,)), "heads are not apart"),
        (Group("each", halve, neurons=(0,)), "neurons of an edit at attention"),
        (Group("each", negate, neurons=(900,)), "neuron 900"),
        (Group("each", halve, heads=(9,)), "head 9"),
        (Group("each", patch(tiny("gpt2"))), "of the same shape"),
        (Group("each", patch(tokens[0, :4])), "a text of 4 tokens"),
    ):
        with pytest.raises(InputError, match=message):
            complete(model, tokens, SUFFIX, sweep(BLOCKS, [group]))
    with pytest.raises(InputError, match="use complete"):
        score(model, multiple_choice(), sweep(BLOCKS, [Group("each", patch(tokens[0]))]))
    with pytest.raises(InputError, match="one other sample"):
        patch(tokens)
    with pytest.raises(InputError, match="needs of an edit"):
        edit(site="attention", needs=["gradient"])


def test_a_source_that_cannot_read_the_tokens_is_refused(project):
    model, tokens = tiny("llama"), half_remembered(tiny("llama"))
    fewer = copy.deepcopy(model)
    fewer.resize_token_embeddings(40)
    for source, message in (
        (torch.full((99,), -1), r"the source of a patch\n +got: +token -1"),
        (tokens[0] + 100_000, r"the source of a patch\n +got: +token 100"),
        (fewer, "40 tokens"),
        (copy.deepcopy(model).train(), "training mode"),
    ):
        with pytest.raises((InputError, ValueError), match=message):
            complete(model, tokens, SUFFIX, sweep(BLOCKS, [Group("each", patch(source))]))


def test_an_edit_of_a_function_without_a_name_has_that_of_its_type():
    half = edit(site="attention")(partial(lambda here, share: share * here.now, share=0.5))
    assert str(half) == "partial"
