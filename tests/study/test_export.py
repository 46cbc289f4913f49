"""Exported checkpoints: stock transformers alone computes with them what the edited model does."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from pipeline.interventions import Intervention, bypassed
from pipeline.interventions.exporting import EXPORTABLE, write_edit
from pipeline.samples.frame import samples_frame
from pipeline.samples.schemas import SAMPLES
from pipeline.study import export as exporting
from pipeline.study.export import export
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.families import FAMILIES, NOT_ADDITIVE, VOCABULARY, cases, tiny
from tests.project import python, refused

BLOCKS = (1, 3)
NEW = 8
TOKENS = torch.randint(4, VOCABULARY, (3, 20), generator=torch.Generator().manual_seed(1))

IDENTITY = {
    "arcee", "bitnet", "cohere", "ernie", "falcon", "falcon-grouped", "gemma", "glm", "glm4",
    "gpt_neox", "gpt_neox-sequential", "granite", "helium", "llama", "nemotron", "olmo", "phi",
    "qwen2", "qwen2-window", "seed_oss", "stablelm", "starcoder2",
}  # fmt: skip
"""Families whose query and key biases make the softmax one-hot."""

INEXACT = {"cohere2", "falcon-alibi", "gemma2", "olmo-clip", "smollm3"}
"""Families of which only the comparison shows that they have more than rotary scores."""

POSSIBLE = {
    "zero": set(FAMILIES) - NOT_ADDITIVE,
    "mlp-zero": set(FAMILIES) - NOT_ADDITIVE,
    "skip": set(FAMILIES),
    "identity": IDENTITY,
}

STOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pipeline", "tests"):
            raise ImportError(f"{name} is not for this process")

sys.meta_path.insert(0, Blocked())
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
tokens = load_file("tokens.safetensors")["tokens"]
made = {}
for folder in sorted(each for each in Path().iterdir() if each.is_dir()):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        made[f"{folder}.logits"] = model(tokens, use_cache=False).logits.float()
        made[f"{folder}.written"] = model.generate(
            tokens, max_new_tokens=int(sys.argv[1]), do_sample=False, pad_token_id=0
        )
save_file({name: each.contiguous() for name, each in made.items()}, "made.safetensors")
"""


def written(model: Any) -> torch.Tensor:
    return model.generate(TOKENS, max_new_tokens=NEW, do_sample=False, pad_token_id=0)


def in_a_stock_process(folder: Path) -> dict[str, torch.Tensor]:
    """Logits and greedy tokens of each checkpoint in a folder, by a process without our code."""
    save_file({"tokens": TOKENS}, folder / "tokens.safetensors")
    python("-I", "-c", STOCK, str(NEW), cwd=folder)  # -I: without the path to our code
    return load_file(folder / "made.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("edit", EXPORTABLE)
def test_stock_transformers_computes_what_the_edited_model_does(edit, tmp_path):
    exported, expected = tmp_path / "exported", {}
    exported.mkdir()
    for family in sorted(POSSIBLE[edit]):
        model, source = tiny(family), tmp_path / "sources" / family
        model.save_pretrained(source)
        export(str(source), edit, "3,1", exported / family)
        with torch.inference_mode():
            before = model(TOKENS, use_cache=False).logits
            with bypassed(model, Intervention("one", dict.fromkeys(BLOCKS, edit))):
                logits = model(TOKENS, use_cache=False).logits
                expected[family] = logits, written(model)
        assert (logits - before).abs().max() > 0.1, family
    made = in_a_stock_process(exported)
    differ = {
        family: float((made[f"{family}.logits"] - logits).abs().max())
        for family, (logits, _) in expected.items()
    }
    assert {family: d for family, d in differ.items() if not d <= 1e-5} == {}
    for family, (_, tokens) in expected.items():
        assert torch.equal(made[f"{family}.written"], tokens), family


@pytest.mark.parametrize("family", cases(sorted(set(FAMILIES) - IDENTITY)))
def test_an_identity_that_weights_cannot_hold_is_refused(family, tmp_path):
    tiny(family).save_pretrained(tmp_path / "source")
    problem = refused(export, str(tmp_path / "source"), "identity", "1,3", tmp_path / "to")
    assert ("logits that differ" in problem.got) == (family in INEXACT), problem.got
    assert "skip" in problem.remedy
    assert ("mlp-zero" in problem.remedy) or family in NOT_ADDITIVE
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("family", sorted(NOT_ADDITIVE))
@pytest.mark.parametrize("edit", ["zero", "mlp-zero"])
def test_blocks_that_add_more_are_refused(family, edit, tmp_path):
    tiny(family).save_pretrained(tmp_path / "source")
    with pytest.raises(InputError, match="blocks that return more than their input"):
        export(str(tmp_path / "source"), edit, "1", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def save_as(dtype: torch.dtype, family: str, folder: Path) -> None:
    deepcopy(tiny(family)).to(dtype).save_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi"])
def test_the_identity_holds_in_half_precision(family, dtype, tmp_path):
    """Stored and computed in it: the softmax is one-hot there, too."""
    save_as(dtype, family, tmp_path / "source")
    export(str(tmp_path / "source"), "identity", "1,3", tmp_path / "to")
    read = AutoModelForCausalLM.from_pretrained
    source, made = (read(tmp_path / name).eval() for name in ("source", "to"))
    assert source.dtype == made.dtype == dtype
    with torch.inference_mode():
        with bypassed(source, BLOCKS):
            expected = source(TOKENS, use_cache=False).logits
        assert torch.equal(made(TOKENS, use_cache=False).logits, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scores_that_the_precision_cannot_hold_are_refused(dtype, tmp_path):
    """Small heads, one frequency: scores beyond float16, which bfloat16 holds but rounds."""
    save_as(dtype, "gpt_neox", tmp_path / "source")
    with pytest.raises(InputError, match=f"more than {dtype} computes"):
        export(str(tmp_path / "source"), "identity", "1,3", tmp_path / "to")
    assert not (tmp_path / "to").exists()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny("gpt_neox").save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "tokenizer.json").write_text('{"of": "the source"}')
    return Path("source")


def test_all_that_is_wrong_with_the_options_is_said_at_once(source):
    Path("to").mkdir()
    with pytest.raises(InputError) as caught:
        export(str(source), "mean", "1,-2", Path("to"))
    assert [problem.what for problem in caught.value.problems] == ["--edit", "--blocks", "--to to"]
    assert "zero, mlp-zero, skip, identity" in caught.value.problems[0].expected


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("source", "zero", "3,5,9"), "blocks 0 to 4"),
        (("source", "skip", "0,1,2,3,4"), "at least one block that stays"),
        (("source", "skip", ""), "numbers such as 3,5"),
        (("nowhere", "zero", "1"), "an existing folder, the name of a model"),
        (("owner/name@main", "zero", "1"), "an existing folder, the name of a model"),
    ],
)
def test_what_cannot_be_is_refused(options, expected):
    with pytest.raises(InputError, match=expected):
        export(*options, Path("to"))
    assert not Path("to").exists()


def test_tied_weights_are_refused():
    model = deepcopy(tiny("gpt_neox"))
    blocks = model.gpt_neox.layers
    blocks[2].attention.dense.weight = blocks[1].attention.dense.weight
    with pytest.raises(InputError, match="tied weights"):
        write_edit(model, "zero", [1])
    write_edit(model, "zero", [3])
    assert not model.gpt_neox.layers[3].attention.dense.weight.any()
    assert model.gpt_neox.layers[2].attention.dense.weight.any()


def test_nothing_is_written_where_the_logits_differ(source, monkeypatch):
    """A defect in the writing of an edit is found by the comparison."""
    monkeypatch.setattr(exporting, "write_edit", lambda model, *_: model.lm_head.weight.data.neg_())
    with pytest.raises(InputError, match="logits that differ"):
        export(str(source), "zero", "1", Path("to"))
    assert [each.name for each in Path().iterdir()] == ["source"]


def test_the_card_says_what_was_done_and_what_it_was_made_of(source):
    (source / "README.md").write_text(
        "---\nlicense: apache-2.0\ntags: [a]\n---\n# Source\n", encoding="utf-8"
    )
    export(str(source), "skip", "1,3", Path("to"))
    card = Path("to/README.md").read_text("utf-8")
    head = ModelCard(card).data
    assert (head.license, head.library_name) == ("apache-2.0", "transformers")
    assert "- **Licence of the source**: apache-2.0" in card
    assert "`skip` in blocks 1, 3" in card
    assert "of bypass-memorization 0.1.0" in card
    assert exporting.sha256(source / "model.safetensors") in card
    assert (
        "On 128 random tokens in float32, the logits differ by at most 0 of the largest logit"
        in card
    )
    assert re.search(r"and by (0|[1-9])\.\d+ of it from those of\nthe source itself", card)
    modes = {file.name: file.stat().st_mode & 0o777 for file in Path("to").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"] == modes["README.md"]
    assert Path("to/tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert json.loads(Path("to/config.json").read_text())["num_hidden_layers"] == 3


def test_the_console_names_what_the_head_of_the_card_lacks(source, capsys):
    export(str(source), "zero", "1", Path("bare"))
    said = capsys.readouterr().out
    assert said.startswith("bare/README.md does not name base_model and license:")
    assert "--base-model and --license" in said
    assert "# source, `zero` in block 1\n" in Path("bare/README.md").read_text("utf-8")

    export(str(source), "zero", "1", Path("half"), license="mit")
    assert capsys.readouterr().out.startswith("half/README.md does not name base_model:")

    export(str(source), "zero", "1", Path("to"), base_model="owner/base", license="mit")
    assert capsys.readouterr().out == ""
    card = Path("to/README.md").read_text("utf-8")
    head = ModelCard(card).data
    assert (head.base_model, head.license) == ("owner/base", "mit")
    assert "- **Licence of the source**: not stated" in card


@pytest.mark.parametrize("given", [True, False])
def test_the_card_shows_what_any_study_of_the_same_weights_measured(source, given):
    """Matched by checksum, under whatever name; in words, of a few metrics."""
    rows = [
        ("one", "baseline", None, [], "exact_match", 0.9, 0.8, 1.0),
        ("one", "block-01.zero", "zero", [1], "exact_match", 0.25, 0.2, 0.3),
        ("one", "block-02.zero", "zero", [2], "exact_match", 0.5, 0.4, 0.6),
        ("one", "baseline", None, [], "zlib_ratio", 3.0, 2.0, 4.0),
        ("one", "block-01.zero", "zero", [1], "zlib_ratio", 3.5, 2.5, 4.5),
        ("other", "baseline", None, [], "exact_match", 0.5, 0.4, 0.6),
        ("other", "block-01.zero", "zero", [1], "exact_match", 0.75, 0.7, 0.8),
    ]
    names = ["model", "intervention", "edit", "blocks", "metric", "value", "low", "high"]
    summary = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        pl.col("blocks").cast(pl.List(pl.UInt16)),
        split=pl.lit("memorized"), task=pl.lit("memorization"), n=pl.lit(128, pl.UInt32),
        higher_is_better=pl.lit(None, pl.Boolean), category=pl.lit(None, pl.String),
        k=pl.lit(None, pl.UInt32), copies=pl.lit(None, pl.UInt32),
    )  # fmt: skip
    weights = {"model.safetensors": exporting.sha256(source / "model.safetensors")}
    pin = {"repo": "owner/base", "commit": "0" * 40}
    for name, files, origin in (
        ("one", weights, pin), ("other", {"model.safetensors": "0" * 64}, {"repo": "owner/other"})
    ):  # fmt: skip
        manifest = {"name": name, "family": "texts", "origin": origin, "files": files}
        path = Path("data/audit-x/checkpoints", name, "manifest.json")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(manifest))
    summary.write_parquet("data/audit-x/summary.parquet")
    samples = samples_frame(TOKENS.numpy(), 4, ["memorized"] * 3, [None] * 3)
    samples = samples.with_row_index("row") if given else samples
    tables.write(samples, Path("data/audit-x/samples/texts.parquet"), SAMPLES, {})

    export(str(source), "zero", "1", Path("to"))
    card = Path("to/README.md").read_text("utf-8")
    table = [line for line in card.splitlines() if line.startswith("| ")]
    of = "128 texts" if given else "128 memorized texts"
    prose = " ".join(card.split())
    assert "reads 4 tokens (the prefix); it is to continue with the 16 that follow" in prose
    assert table == [
        "| what | of | before | after |",
        f"| recited: the greedy continuation is the whole suffix | {of} | "
        "90.0% [80.0, 100.0] | 25.0% [20.0, 30.0] |",
    ]
    head = ModelCard(card).data
    assert (head.base_model, head.pipeline_tag) == ("owner/base", "text-generation")
    assert head.license == "unknown"
    snippet = card.partition("```python\n")[2].partition("```")[0]
    assert 'name = "to"' in snippet
    compile(snippet, "card", "exec")
    export(str(source), "zero", "4", Path("none"))
    assert "not this edit of these blocks" in Path("none/README.md").read_text("utf-8")


@pytest.mark.slow
def test_the_command_line_writes_a_checkpoint(source):
    words = ["--model", "source", "--edit", "identity", "--blocks", "1,3", "--to", "to"]
    said = python("-m", "pipeline", "export", *words, cwd=Path.cwd()).stdout.splitlines()[-1]
    assert said == "to: identity of blocks 1,3; logits within 0.0e+00 of the edited model's"
    assert (Path("to") / "model.safetensors").is_file()
