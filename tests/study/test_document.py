"""Audits of whole documents: what they add to a study, and that a killed one goes on."""

import os
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import yaml
from polars.testing import assert_frame_equal

from pipeline.__main__ import audit as command
from pipeline.checkpoints.loading import load
from pipeline.interventions import Intervention, patch
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.schemas import RECITED, WINDOWS
from pipeline.measure.windows import document, measure
from pipeline.samples.texts import files, texts
from pipeline.stages import registry
from pipeline.study import audit
from pipeline.study.composition import check
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests import own
from tests.project import python
from tests.study.test_audit import SMALL_SHARDS, interrupted


@pytest.fixture
def asked(asked: audit.Asked) -> audit.Asked:
    return replace(asked, document=asked.samples)


def test_a_document_is_the_file_that_a_link_leads_to_and_a_folder_all_its_texts(tmp_path):
    odd = os.fsdecode(b"z\xff.txt")
    written = {"b.txt": "\ufeffb", "below/a": "a", ".hidden": "h", ".git/config": "h", odd: "z"}
    for name, words in written.items():
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(words)
    (tmp_path / "link").symlink_to(tmp_path / "texts" / "b.txt")
    assert texts(tmp_path / "link") == {"b.txt": "b"}
    assert texts(tmp_path / "texts") == {"b.txt": "b", "below/a": "a", r"z\xff.txt": "z"}
    (tmp_path / "texts" / "c.csv").write_text("text\nc\n")
    with pytest.raises(InputError, match=r"a table: .*c\.csv"):
        files(tmp_path / "texts")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="no file"):
        files(tmp_path / "nothing")


def test_the_longest_document_is_the_studys_sample_and_all_are_read_first(asked, tmp_path):
    (tmp_path / "texts").mkdir()
    for name, words in (("a", ""), ("b", "too short"), ("c", own.text())):
        (tmp_path / "texts" / name).write_text(words)
    assert audit.longest(tmp_path / "texts", None, tmp_path / "texts") == tmp_path / "texts" / "c"
    audit.study(replace(asked, samples=tmp_path / "texts" / "c"))
    (tmp_path / "texts" / "d").write_bytes(b"\xff")
    book, broken = Path("text.txt"), tmp_path / "texts" / "d"
    for texts_of in ((broken.parent, None, None), (book, None, broken), (book, str(broken), None)):
        with pytest.raises(InputError, match="UTF-8"):
            audit.longest(*texts_of)


@pytest.mark.parametrize("kind", ["none", "text", "model"])
def test_the_study_names_documents_and_reference(kind, asked, model, tmp_path):
    Path("unknown.txt").write_text("nothing")
    reference = {"none": None, "text": "unknown.txt", "model": str(model)}[kind]
    one = replace(asked, stride=4, edits="block-01", reference=reference)
    made = check(audit.study(one), "params.yaml")
    assert (made.windows.prefix_length, made.windows.stride) == (8, 4)
    assert made.windows.reference_text == ("reference" if kind == "text" else None)
    assert made.windows.reference == ("reference" if kind == "model" else None)
    assert [each.name for each in made.models.values()][1:] == ["reference"] * (kind == "model")
    audit.prepare(one)
    assert texts(asked.folder / "documents") == {"text.txt": own.text()}
    assert (asked.folder / "reference").exists() == (kind != "none")


def test_a_reference_that_is_nothing_is_refused(asked):
    for reference, name in (("nowhere", "mine"), (None, "reference")):
        with pytest.raises(InputError, match=r"a text file, or OWNER/NAME|has this one"):
            audit.study(replace(asked, name=name, reference=reference))


def test_samples_and_document_exclude_each_other():
    for given in ({}, {"samples": Path("a.csv"), "document": Path("b.txt")}):
        with pytest.raises(InputError, match="one of --samples and --document"):
            command("m", **given)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_and_repeated_it_goes_on_to_the_page(model, tmp_path):
    (tmp_path / "book.txt").write_text(own.text(words=3000))
    words = ["audit", "--model", str(model), "--document", "book.txt", "--name", "mine"]
    words += ["--edits", "baseline,block-03", "--show-text", "--reference", "other"]
    words += ["--prefix-length", "8", "--suffix-length", "8", "--corpus", "texts"]
    other = own.random_model(blocks=2)  # the edit is none of the reference's
    other.save_pretrained(tmp_path / "other")
    own.write_tokenizer(tmp_path / "other")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text(own.text(words=3000) * 2)
    with interrupted("windows", *words, cwd=tmp_path):
        pass
    again = python("-c", SMALL_SHARDS, *words, cwd=tmp_path)
    assert "resuming: " in again.stdout + again.stderr
    data = tmp_path / "data/audit-mine/windows"
    made = tables.read(data / "mine.parquet", WINDOWS)
    assert set(made["intervention"]) == {"baseline", "block-03"}
    reference = tables.read(data / "reference.parquet", WINDOWS)
    assert set(reference["intervention"]) == {"baseline"}
    assert made.filter(pl.col("log_prob") > 0).is_empty()
    assert tables.read(data / "mine.recited.parquet", RECITED).height == 2
    page = (tmp_path / "reports/audit-mine/document/index.html").read_text("utf-8")
    assert own.text(words=3000).split()[1500] in page
    assert not (tmp_path / "data/audit-mine/memorization").exists()
    counted = pl.read_csv(tmp_path / "reports/audit-mine/document/copies.csv")
    assert counted.height == made.filter(intervention="baseline", reading="rolling").height
    assert (counted["copies"] >= 2).all()
    assert "Known passages by copies in the corpus" in page


def test_an_unknown_edit_is_refused_before_the_first_stage(asked):
    for edits, unknown in (("block-01,block-4", "block-4"), ("block-04", "block-04")):
        with pytest.raises(InputError, match=f"--edits\\n    got:      {unknown}\\n"):
            audit.study(replace(asked, edits=edits))


def test_an_edit_of_the_studys_own_puts_in_the_values_of_its_source(asked, monkeypatch):
    other = own.random_model()
    other.save_pretrained("other")
    own.write_tokenizer(Path("other"))
    asked = replace(asked, reference="other", edits="block-01")
    values = audit.study(asked)
    asked.folder.mkdir(parents=True)
    audit.prepare(asked)
    monkeypatch.chdir(asked.folder)
    Path("edits").mkdir()
    code = "from pipeline.interventions import patch\nfrom_other = patch()\n"
    Path("edits/mine.py").write_text(code)
    line = {"blocks": [0, 1], "edit": "edits/mine.py:from_other", "source": "reference"}
    name = "blocks-00+01.from_other.reference"
    values["interventions"] = [line]
    values["windows"] |= {"interventions": [name], "exact": 0}
    study = check(values, "params.yaml")
    for stage in ("checkpoint@audit-mine-mine", "checkpoint@audit-mine-reference"):
        registry.run(study, stage)
    for stage in ("interventions", "windows"):
        registry.run(study, f"{stage}@audit-mine-mine")
    made = tables.read(study.data / "windows/mine.parquet", WINDOWS).filter(intervention=name)
    edited, tokenizer = load(study.data / "checkpoints/mine", "float32")
    documents = [document("text.txt", own.text(), tokenizer)]
    one = Intervention(name, dict.fromkeys((0, 1), patch(other.eval())))
    expected = measure(edited, documents, 8, 8, [BASELINE, one], exact=0)
    assert_frame_equal(made, expected.filter(intervention=name), rel_tol=1e-4)
    stages = yaml.safe_load((audit.ROOT / "dvc.yaml").read_text("utf-8"))["stages"]
    assert {"${loops.edits}", "${loops.others}"} <= {*stages["windows"]["do"]["deps"]}
