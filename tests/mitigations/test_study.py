"""A whole study of mitigations in miniature: stages, page, an export, and a folder's probes."""

from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from pipeline.__main__ import app
from pipeline.mitigations.methods import METHODS, edited
from pipeline.mitigations.rows import recited
from pipeline.mitigations.schema import Mitigations
from pipeline.mitigations.subject import other_model, subject
from pipeline.stages import registry
from pipeline.study.composition import check
from pipeline.study.loops import loops
from pipeline.study.schema import Study, given
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import safe_yaml
from tests.gguf_files import small_llama, small_tokenizer, write_gguf
from tests.project import ROOT, begun, composed

METHODS_HERE = ["none", "twin", "kfac", "oracle"]
KFAC = ["--study", "arena", "--method", "kfac", "--dose", "0.5"]


def values() -> dict[str, Any]:
    """The study `arena` with two blocks, few records and few texts."""
    made = deepcopy(composed("arena"))
    made["corpus"]["arena"] |= {
        "vocabulary": 400, "world_tokens": 4000, "records": {1: 10, 40: 30}, "control_records": 10,
        "task_items": 8,
    }  # fmt: skip
    for model in made["models"].values():
        model["checkpoint"] |= {"n_blocks": 2, "batch_rows": 8}
    made["benchmarks"]["tasks"] = ["tiny_piqa"]
    made["mitigations"] |= {"methods": METHODS_HERE, "texts": 20, "forget": ["contact", "key"]}
    return made


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """The study, after all its stages but those of other pages."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("arena")
        patch.chdir(folder)
        yield begun(
            folder, values(), "corpus@arena", "samples@arena-records",
            *("checkpoint@arena-shown", "checkpoint@arena-twin"),
            *(f"mitigation@arena-{method}" for method in METHODS_HERE),
            *("mitigations@arena", "mitigations_page@arena"),
        )  # fmt: skip


def test_the_tables_that_outside_checks_rely_on(study: Study) -> None:
    found = pl.read_parquet(study.data / "mitigations.parquet")
    wanted = ["model", "method", "dose", "split", "metric", "value", "low", "high", "n"]
    assert found.columns[: len(wanted)] == wanted
    assert set(found["method"]) == set(METHODS_HERE)
    assert {"forget_seen", "forget_held_out", "control", "text", "tiny_piqa"} <= set(found["split"])
    assert found["dose"].dtype == pl.Float64
    doses = found.filter(method="kfac")["dose"].unique()
    assert set(METHODS["kfac"].doses) <= set(doses)
    probed = pl.read_parquet(study.data / "durability.parquet")
    wanted = ["model", "method", "dose", "probe", "x", "value", "low", "high", "verdict"]
    assert [column for column in probed.columns if column in wanted] == wanted
    assert {"sampling", "int8", "int4", "relearning", "prefix", "undone"} <= set(probed["probe"])
    assert set(probed["verdict"]) <= {"removed", "hidden", "untouched", "undecided", None}
    assert (study.reports / "mitigations.html").stat().st_size > 10_000


def test_a_stage_gives_the_same_bytes_again(study: Study) -> None:
    path = study.data / "mitigation" / "kfac.parquet"
    before = path.read_bytes()
    registry.run(study, "mitigation@arena-kfac")
    assert path.read_bytes() == before


def test_the_oracle_is_trained_without_the_rows_to_forget_alone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, trained = given(study.mitigations), list[pl.DataFrame]()
    known = subject(study.data, asked, study.model("shown"), study.corpus["arena"])
    spy = lambda recipe, rows, tokenizer: trained.append(rows)  # noqa: E731
    monkeypatch.setattr("pipeline.mitigations.subject.train", spy)
    with pytest.raises(AttributeError):  # nothing was trained
        other_model("oracle", known)
    rows = pl.read_parquet(study.data / "corpus" / "rows.parquet")
    records = pl.read_parquet(study.data / "corpus" / "records.parquet")
    lost = records.filter(pl.col("kind").is_in(["contact", "key"]) & (pl.col("copies") == 40))
    assert len(lost) == 12
    assert len(rows) - len(trained[0]) == 12 * 40
    left = set(map(tuple, trained[0]["tokens"].to_list()))
    assert not left & set(map(tuple, lost["tokens"].to_list()))


def test_an_export_is_the_edited_model_and_states_its_durability(study: Study) -> None:
    dose = pl.read_parquet("data/arena/durability.parquet").filter(method="kfac")["dose"][0]
    words = ["export", "--study", "arena", "--method", "kfac", "--dose", str(dose), "--to", "out"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    stock = AutoModelForCausalLM.from_pretrained("out").eval()
    asked = given(study.mitigations)
    known = subject(study.data, asked, study.model("shown"), study.corpus["arena"])
    write = METHODS["kfac"].prepare(known.model, known.parts.forget, known.parts.keep, asked.seed)
    tokens = known.parts.forget.tokens[:4]
    with torch.no_grad():
        expected = edited(known.model, write, dose)(input_ids=tokens).logits
        assert torch.equal(stock(input_ids=tokens).logits, expected)
    card = Path("out/README.md").read_text(encoding="utf-8")
    verdict = pl.read_parquet("data/arena/durability.parquet").filter(method="kfac", probe="all")
    assert f"| all | 0.0 |  | {verdict['verdict'][0]} |" in card
    with pytest.raises(InputError, match="existing folder or file"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--study", "tiny", "--method", "kfac", "--dose", "1"], "the study in force is arena"),
        (["--study", "arena", "--method", "kfac"], "--dose None"),
        (["--study", "arena", "--method", "twin", "--dose", "1"], "the others are no edits"),
        (["--study", "arena", "--method", "kfac", "--dose", "-1"], "see the page of mitigations"),
        (["--study", "arena", "--method", "wanda", "--dose", "1.5"], "a share, 0 to 1"),
        (["--study", "arena", "--method", "block-zero", "--dose", "1.5"], "a whole number"),
        (["--study", "arena", "--method", "npo", "--dose", "inf"], "a whole number"),
        (["--study", "arena", "--method", "coherent", "--dose", "inf"], "0 or more, finite"),
        ([*KFAC, "--license", "mit"], "name either"),
        ([*KFAC, "--model", "shown", "--edit", "zero", "--blocks", "0"], "name either"),
    ],
)
def test_an_export_that_is_not_possible(study: Study, words: list[str], expected: str) -> None:
    with pytest.raises(InputError) as error:
        CliRunner().invoke(app, ["export", *words, "--to", "never"], catch_exceptions=False)
    assert expected in str(error.value)
    assert not Path("never").exists()


def test_the_durability_of_any_folder(study: Study) -> None:
    samples = pl.read_parquet(study.data / "samples" / "arena.parquet")
    samples.filter(split="memorized").select("tokens").write_parquet("some.parquet")
    folders = {name: f"data/arena/checkpoints/{name}" for name in ("shown", "twin")}
    words = ["durability", "--samples", "some.parquet", "--suffix-length", "16"]
    words += ["--model", folders["twin"], "--before", folders["shown"], "--twin", folders["twin"]]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    for probe in ("edited", "sampling", "int8", "int4", "relearning", "prefix", "undone", "all"):
        assert probe in result.output


def test_a_pretrained_model_and_the_one_without_the_rows_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, made = "arena-smollm2", deepcopy(composed("arena-smollm2"))
    made["corpus"][name] |= {"records": {1: 3, 24: 12}, "control_records": 3, "task_items": 8}
    for model in made["models"].values():
        model["checkpoint"] |= {"billions": 0.001, "learning_rate": 0.01, "epochs": 8}
        model["checkpoint"] |= {"largest_perplexity": 1e5}
    file = write_gguf(tmp_path / "small.gguf", small_llama(), small_tokenizer())
    for where in ("pipeline.workflow.wheel", "pipeline.checkpoints.gguf"):
        monkeypatch.setattr(f"{where}.unpacked", lambda **_: nullcontext(file))
    monkeypatch.chdir(tmp_path)
    stages = (f"corpus@{name}", f"samples@{name}-planted")
    study = begun(tmp_path, made, *stages, f"checkpoint@{name}-shown", f"checkpoint@{name}-twin")
    known = subject(study.data, given(study.mitigations), study.model("shown"), study.corpus[name])
    assert [len(part.rows) for part in known.parts.splits.values()] == [4, 4, 2, 2, 2, 32]
    read = torch.cat([known.parts.readable, known.parts.splits["text"].rows.tokens])
    assert len(read.unique(dim=0)) == 64
    twin, oracle = other_model("twin", known), other_model("oracle", known)
    recites = {
        split: [float(recited(each, known.parts.splits[split].rows).float().mean())
                for each in (known.model, twin, oracle)]
        for split in ("forget_held_out", "keep_held_out")
    }  # fmt: skip
    assert recites == {"forget_held_out": [1, 0, 0], "keep_held_out": [1, 0, 1]}


def test_the_check_of_the_model(study: Study) -> None:
    del study
    wrong = values()
    wrong["mitigations"] |= {"model": "twin"}
    with pytest.raises(InputError, match="and a twin"):
        check(wrong)
    assert "arena-kfac" in loops(check(values()))["mitigation"]
    assert loops(check(composed("tiny")))["mitigation"] == {}


@pytest.mark.parametrize(("ids", "expected"), [([9999] * 48, "ids below"), ([1] * 4000, "at most")])
def test_durability_of_samples_that_do_not_fit_the_model(
    study: Study, ids: list[int], expected: str
) -> None:
    pl.DataFrame({"tokens": [ids, [2] * len(ids)]}).write_parquet("odd.parquet")
    words = ["durability", "--samples", "odd.parquet", "--model", "data/arena/checkpoints/twin"]
    lengths = ["--prefix-length", "32", "--suffix-length", str(len(ids) - 32)]
    with pytest.raises(InputError, match=expected):
        CliRunner().invoke(app, [*words, *lengths], catch_exceptions=False)


def test_every_setting_of_a_method_makes_its_stage_stale() -> None:
    params = safe_yaml(ROOT / "dvc.yaml")["stages"]["mitigation"]["do"]["params"]
    own = {each.removeprefix("mitigations.") for each in params if "mitigations." in each}
    # the name of the method is the stage's, and the models are all an input
    assert own == Mitigations.model_fields.keys() - {"model", "methods"}
