"""Edits of one's own as lines of a study: its stages run them, and notice a change of the file."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import transformers as t
from ruamel.yaml import YAML

from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.manifest import write_manifest
from pipeline.interventions import complete
from pipeline.interventions.edits import Source, with_source
from pipeline.measure.listed import read_listed
from pipeline.samples.schemas import SAMPLES
from pipeline.stages import registry
from pipeline.study.composition import check
from pipeline.study.loops import loops
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests import own
from tests.interventions.test_own_edits import EDITS, FILE, HERE
from tests.measure.cases import random_samples
from tests.project import ROOT, copy_files

PREFIX, SUFFIX, BLOCKS = 8, 4, 3
LINES: list[dict[str, Any]] = [
    {"blocks": "each", "edit": "identity"},
    *({"blocks": [1, 2], "edit": f"{FILE}:{name}"} for name in EDITS[:-1]),
    {"blocks": [1], "edit": f"{FILE}:from_other", "source": "standard"},
    {"blocks": "each", "edit": f"{FILE}:halve", "heads": [1], "positions": "suffix"},
    {"blocks": [2], "edit": "mlp-zero", "neurons": [3, 5]},
]


def values() -> dict[str, Any]:
    """A study of two models of one shape."""
    tiny = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
    checkpoint = {**tiny["models"]["tiny-pythia-8"]["checkpoint"], "n_blocks": BLOCKS, "width": 32}
    model = {"family": "records", "checkpoint": checkpoint}
    return {
        **{name: tiny[name] for name in ("statistics", "report", "run")},
        "study": "own",
        "corpus": {"own": tiny["corpus"]["tiny"]},
        "families": {
            "own-records": {
                **{"name": "records", "prefix_length": PREFIX, "suffix_length": SUFFIX},
                "samples": {"source": "records", "memorized_copies": 16},
            }
        },
        "models": {f"own-{name}": {"name": name, **model} for name in ("perturbed", "standard")},
        "datasets": {},
        "interventions": LINES,
        "evaluation": {
            "records": {**tiny["evaluation"]["pythia"], "baseline_floor": 0, "decode": "all"}
        },
    }


def write_checkpoint(folder: Path, name: str, seed: int) -> None:
    """A random GPT-NeoX with a tokenizer and its manifest."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": BLOCKS, "max_position_embeddings": 64}
    config = t.GPTNeoXConfig(vocab_size=own.VOCABULARY, **sizes, bos_token_id=0, eos_token_id=0)
    model = t.GPTNeoXForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    own.write_tokenizer(folder).save_pretrained(folder)
    facts = {"name": name, "family": "records", "seed": seed, "origin": {"recipe": {"seed": seed}}}
    write_manifest(folder, model, tokens=own.VOCABULARY, **facts)


def test_a_study_runs_edits_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_files(tmp_path)
    shutil.copytree(HERE / "edits", tmp_path / "edits")
    monkeypatch.chdir(tmp_path)
    study = check(values())
    for seed, name in enumerate(("perturbed", "standard")):
        write_checkpoint(study.data / "checkpoints" / name, name, seed)
    samples = random_samples(6, PREFIX, SUFFIX, ["memorized"] * 3 + ["control"] * 3)
    path = study.data / "samples" / "records.parquet"
    tables.write(samples, path, SAMPLES, {"study": "own"})

    looped = loops(check(values()))
    assert looped["edits"] == "edits"
    assert looped["others"] == "data/own/checkpoints"
    for name in ("perturbed", "standard"):
        registry.run(study, f"interventions@own-{name}")
    listed = read_listed(study.data, "perturbed")
    patched = next(one for one in listed if one.source)
    assert {one.name for one in listed} - {patched.name} == {
        one.name for one in read_listed(study.data, "standard")
    }, "no model is its own source"

    registry.run(study, "memorization@own-perturbed")
    path = study.data / "memorization" / "perturbed.parquet"
    made, provenance = pl.read_parquet(path), tables.provenance(path)
    assert set(provenance["sources"]) == {"standard"}
    model, twin = (
        load_model(study.data / "checkpoints" / n, "float32") for n in ("perturbed", "standard")
    )
    source = Source(twin)
    tokens = torch.tensor(samples["tokens"].to_list())
    with_twin = [with_source(one, source) if one.source else one for one in listed]
    expected = complete(model, tokens, SUFFIX, with_twin).continuation.flatten(0, 1)
    assert made["continuation"].to_list() == expected.tolist()
    by_name = made.partition_by("intervention", as_dict=True)
    outputs = [tuple(map(tuple, by_name[one.name,]["continuation"])) for one in listed]
    assert len(set(outputs)) > 0.8 * len(outputs)

    registry.run(study, "tokens@own-perturbed")
    certificates = pl.read_parquet(study.data / "certificates" / "perturbed.parquet")
    own_edits = {f"{FILE}:{name}" for name in EDITS}
    assert set(certificates["edit"]) == own_edits | {"identity", "mlp-zero"}
    assert (certificates["change"] > 0).all()
    assert (certificates["difference"] < 1e-4).all()

    file = Path(FILE)
    file.write_text(file.read_text().replace("return 0.5 * here.now\n", "return 3 * here.now\n", 1))
    capsys.readouterr()
    registry.run(study, "memorization@own-perturbed")
    assert f"{1 + BLOCKS + 1} of {len(listed)} interventions are taken" in capsys.readouterr().out
    again = pl.read_parquet(path)
    changed = again.filter(again["continuation"] != made["continuation"])["intervention"].unique()
    assert set(changed) <= {one.name for one in listed if "halve" in one.name}
    assert "blocks-01+02.halve" in changed


def test_wrong_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(HERE / "edits", tmp_path / "edits")
    monkeypatch.chdir(tmp_path)
    for line, message in (
        ({"edit": "edits/other.py:halve"}, "No such file"),
        ({"edit": f"{FILE}:third"}, "without third"),
        ({"edit": "../mine.py:halve"}, r"edits/FILE\.py:FUNCTION"),
        ({"edit": f"{FILE}:halve", "source": "nobody"}, "nobody"),
        ({"edit": "skip", "neurons": [1]}, "neurons with skip"),
    ):
        with pytest.raises(InputError, match=message):
            check({**values(), "interventions": [{"blocks": "each", **line}]})
