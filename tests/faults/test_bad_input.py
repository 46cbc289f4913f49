"""Every kind of bad input, and the error that it gives: no traceback, nothing half-done."""

import copy
import json
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipeline.checkpoints import schema
from pipeline.checkpoints.folder import describe_folder
from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.manifest import MANIFEST, read_manifest
from pipeline.checkpoints.verified import load_tokenizer
from pipeline.corpus.schemas import RECORDS
from pipeline.samples import records, schemas
from pipeline.samples.frame import check_samples, samples_frame
from pipeline.study import audit
from pipeline.study.composition import check, load
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests import own
from tests.project import ROOT, Project, commit_all, copy_files

TINY: dict[str, Any] = YAML(typ="safe").load(ROOT / "params.yaml")
Values = dict[str, Any]


def refused(act: Callable[[], object], *said: str) -> None:
    """It is refused with a message that has all four parts, and each of `said`."""
    with pytest.raises(InputError) as caught:
        act()
    message = str(caught.value)
    for part in ("got:", "expected:", "remedy:", *said):
        assert part in message
    assert all(line.isprintable() for line in message.splitlines())
    assert len(message.splitlines()) == 1 + 4 * len(caught.value.problems)


# ---------------------------------------------------------------------- names of anything

HOSTILE: list[Any] = [
    *("", "a b", "a;touch pwned", "$(touch pwned)", "`touch pwned`", "a|touch pwned"),
    *("a&touch pwned", "a>pwned", "$HOME", "${study}", "a'b", 'a"b', "a\\b", "a\ntouch pwned"),
    *("a\n", "a\0b", "a\x1b[2Jb", "{model}", "a*", "[a]", "a?", "~", "--help", "..", "../../a"),
    *("/tmp/a", "a/b", ".a", "ä", "\uff41", "a\u202eb", "a\u200bb", "a@b", "a,b", "a#b", "a" * 64),
    *(7, None, ["a"], *(f"a{sign}b" for sign in "()!=%^+:<\t\uff1b")),
]

PLACES = {
    "study": "study",
    "families/*/name": "families.",
    "models/*/name": "models.",
    "theory/*/name": "theory.",
    "families/key": "families.",
    "models/key": "models.",
    "theory/key": "theory.",
    "corpus/key": "corpus.",
    "benchmarks/tasks/0": "benchmarks.tasks.0",
    "models/*/checkpoint/source": ".source",
}
"""Whatever dvc.yaml puts into a command, a path or the name of a stage -> how it is named."""


def _put(values: Any, path: str, value: object) -> None:
    """Set a value of a study; * is the first key, and the last part `key` that key itself."""
    *parents, last = path.split("/")
    for part in parents:
        values = values[next(iter(values)) if part == "*" else part]
    if last == "key":
        values[str(value)] = values.pop(next(iter(values)))
    else:
        values[int(last) if last.isdigit() else last] = value


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_name_is_refused(place: str) -> None:
    for name in HOSTILE:
        values = copy.deepcopy(TINY)
        _put(values, place, name)
        refused(partial(check, values), PLACES[place])


def test_a_hostile_argument_names_no_entry_and_no_audit(tmp_path: Path) -> None:
    study = check(TINY)
    for name in filter(lambda name: isinstance(name, str), HOSTILE):
        for find in (study.family, study.model):
            refused(partial(find, name), "one of ")
        asked = own.asked(name=name, model=str(tmp_path), samples=tmp_path / "samples.csv")
        refused(partial(audit.study, asked), "--name")


# ---------------------------------------------------------------------- other values of the params


def test_another_order_is_the_same_study() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(each) for key, each in reversed(value.items())}
        return value

    assert check(turned(TINY)) == check(TINY)


TEXTS = [
    *(b"", b"[]", b"1", b"study: [", b"[" * 1_000, b"a: 1\n---\na: 2\n", b"study:\n\t- a\n"),
    *(b"study: tiny\nstudy: other\n", b"study: !!python/object/apply:os.system [touch pwned]\n"),
    *(b"&a [*a]\n", b"study: *nobody\n", b"study: !!bool x\n", b"study: !!int ''\n", b"? [a]\n: b"),
    *(b"study: \xff\xfe\n", "study: tiny\n".encode("utf-16"), b"\0" * 100, b"PAR1" * 8),
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_bad_texts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes(text)
    refused(load, "params.yaml")
    assert [each.name for each in tmp_path.iterdir()] == ["params.yaml"]


# ---------------------------------------------------------------------- samples

SAMPLES = samples_frame(np.array([[1, 2, 3], [4, 5, 6]]), 2, ["memorized", "control"], [3, None])


def _with(**columns: list[Any]) -> pl.DataFrame:
    made = {name: pl.Series(each, dtype=SAMPLES[name].dtype) for name, each in columns.items()}
    return SAMPLES.with_columns(**made)


# columns that are missing, of another type or null: tests/workflow/test_tables.py
SAMPLE_TABLES: dict[str, tuple[pl.DataFrame, tuple[str, ...]]] = {
    "no rows": (SAMPLES.clear(), ("no samples",)),
    "no columns": (pl.DataFrame(), ("column sample_id", "column tokens")),
    "tokens of 64 bits": (SAMPLES.cast({"tokens": pl.List(pl.UInt64)}), ("List(UInt64)",)),
    "null tokens": (_with(tokens=[[1, 2, 3], None]), ("column tokens", "1 nulls")),
    "a null within tokens": (_with(tokens=[[1, 2, 3], [4, None, 6]]), ("sample 1\n", "2 tokens")),
    "no tokens": (_with(tokens=[[1, 2, 3], []]), ("sample 1", "0 tokens")),
    "too many tokens": (_with(tokens=[[1, 2, 3, 4], [4, 5, 6]]), ("sample 0", "4 tokens")),
    "two lengths": (_with(prefix_length=[1, 2], suffix_length=[2, 1]), ("1 + 2; 2 + 1",)),
    "no prefix": (_with(prefix_length=[0, 0], suffix_length=[3, 3]), ("0 of prefix",)),
    "no suffix": (_with(prefix_length=[3, 3], suffix_length=[0, 0]), ("0 of suffix",)),
    "longer than the context": (_with(suffix_length=[9, 9]), ("11 tokens", "at most 8")),
    "another vocabulary": (
        _with(tokens=[[1, 2, 3], [4, 5, 60]]),
        ("sample 1\n", "token id 60", "below 10"),
    ),
    "an id twice": (_with(sample_id=[1, 1]), ("sample 1", "unique within the table")),
    "an unknown split": (_with(split=["memorized", "Control"]), ("'Control'", "exposed, control")),
}


def _use(frame: pl.DataFrame, folder: Path) -> None:
    """Do what a stage does with a table of samples that comes from elsewhere."""
    frame.write_parquet(folder / "samples.parquet")
    read = tables.read(folder / "samples.parquet", schemas.SAMPLES)
    check_samples(read, vocabulary=10, context=8)


@pytest.mark.parametrize("case", SAMPLE_TABLES)
def test_bad_samples_are_refused(tmp_path: Path, case: str) -> None:
    frame, said = SAMPLE_TABLES[case]
    refused(partial(_use, frame, tmp_path), *said)


def test_samples_may_come_in_any_order(tmp_path: Path) -> None:
    _use(SAMPLES.reverse(), tmp_path)


def test_provenance_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    for said in ("{", "[1]", "1", "null", "é"):
        SAMPLES.write_parquet(path, metadata={tables.METADATA_KEY: said})
        refused(lambda: tables.provenance(path), "t.parquet")
    refused(lambda: tables.provenance(tmp_path / "nothing"), "No such file")


def test_records_that_are_too_short_are_refused() -> None:
    frame = pl.DataFrame(
        {"record_id": [0, 1], "kind": ["key"] * 2, "copies": [1, 0], "tokens": [[1, 2, 3], [1, 2]]},
        schema=tables.dtypes(RECORDS),
    )
    assert len(records.samples(frame, 1, 1, 1)) == 2
    refused(lambda: records.samples(frame, 2, 1, 1), "record 1\n", "3 or more")


# ---------------------------------------------------------------------- checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, neox: PreTrainedModel) -> Path:
    """A folder with a model that a user may have."""
    folder = tmp_path_factory.mktemp("whole")
    neox.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a").save_pretrained(folder)
    return folder


class Bomb:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


def _pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))


def _bring_code(folder: Path, file: str, **settings: object) -> None:
    """Code that leaves a file where it runs, and settings that name it."""
    known = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(known | settings))
    (folder / "odd.py").write_text("import os\nos.mkdir('pwned')\nclass Odd: pass\n")


def _remote_code(folder: Path) -> None:
    classes = {"AutoConfig": "odd.Odd", "AutoModelForCausalLM": "odd.Odd"}
    _bring_code(folder, "config.json", model_type="odd", auto_map=classes)


def _remote_tokenizer(folder: Path) -> None:
    classes = {"AutoTokenizer": ["odd.Odd", None]}
    _bring_code(folder, "tokenizer_config.json", tokenizer_class="Odd", auto_map=classes)
    (folder / "tokenizer.json").unlink()


def _not_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["gpt_neox.final_layer_norm.weight"][1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _index(named: object) -> Callable[[Path], object]:
    text = json.dumps({"weight_map": {"w": named}})
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a pickle alone": (_pickle_only, ("no safetensors", "a pickle is never loaded")),
    "a pickle by another name": (
        lambda folder: (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb())),
        ("a safetensors file",),
    ),
    "code of its own": (_remote_code, ("needs no code of its own",)),
    "a tokenizer with code of its own": (_remote_tokenizer, ("needs no code of its own",)),
    "weights that are NaN": (_not_a_number, ("final_layer_norm.weight", "NaN in 1 of ")),
    "no tokenizer": (
        lambda folder: [path.unlink() for path in folder.glob("*token*")],
        ("no tokenizer; config.json", "tokenizer.json"),
    ),
    "an index of other files": (_index("x.safetensors"), ("x.safetensors",)),
    "an index of a file above": (_index("../x"), ("../x",)),
    "an index of numbers": (_index(1), ("index", "a file for each")),
    "weights by another name": (
        lambda folder: (folder / "model.safetensors").rename(folder / "weights.safetensors"),
        ("the safetensors weights.safetensors", "model.safetensors, or "),
    ),
    "an adapter beside the weights": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        ("adapter_config.json", "merge_and_unload"),
    ),
}


def described(folder: Path) -> schema.Model:
    """The model of a user's folder, as a study has it."""
    return schema.Model(name="m", family="f", checkpoint=schema.Folder(path=str(folder)))


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_bad_checkpoints_are_refused(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    spoil, said = CHECKPOINTS[case]
    folder = tmp_path / "a model's $(folder)"
    shutil.copytree(whole, folder)
    spoil(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody is asked, and nobody can agree
    refused(lambda: describe_folder(tmp_path / "out", described(folder), folder), *said)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name], "no code of theirs ran"


def test_a_checkpoint_with_code_beside_it_is_loaded_without(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known architecture is transformers' own, whatever the repository brings."""
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    _bring_code(folder, "config.json", auto_map={"AutoModelForCausalLM": "odd.Odd"})
    monkeypatch.chdir(tmp_path)
    describe_folder(tmp_path / "out", described(folder), folder)
    assert load_model(tmp_path / "out", "float32").config.model_type == "gpt_neox"
    assert len(load_tokenizer(tmp_path / "out")) == 2
    assert not (tmp_path / "pwned").exists()


GOOD: Values = {
    **{"name": "m", "family": "f", "n_blocks": 1, "width": 8, "n_heads": 1, "context": 8},
    **{"vocabulary": 9, "tokens": 9, "parameters": 9, "dtype": "float32", "seed": None},
    **{"origin": {"recipe": {}}, "files": {"model.safetensors": "0" * 64}},
}
OTHERS: list[tuple[str, object]] = [
    *(("other", 1), ("n_blocks", "1"), ("context", -1), ("vocabulary", True), ("dtype", "int4")),
    *(("parameters", 1.5), ("origin", "hub"), ("files", ["model.safetensors"])),
    ("files", {"model.safetensors": None}),
    *(("files", {path: "0" * 64}) for path in ("../x", "a/../../x.safetensors", "/etc/x", "")),
]
MANIFESTS: dict[str, object] = {
    "a list": [],
    "nothing": None,
    "no keys": {},
    "a key less": {key: value for key, value in GOOD.items() if key != "context"},
    **{f"{key}: {value}": {**GOOD, key: value} for key, value in OTHERS},
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_bad_manifests_are_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(GOOD))
    assert read_manifest(tmp_path).n_blocks == 1
    (tmp_path / MANIFEST).write_text(json.dumps(MANIFESTS[case]))
    refused(lambda: read_manifest(tmp_path), MANIFEST, "the manifest of a checkpoint")


def test_a_pickle_that_a_manifest_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({**GOOD, "files": {"pytorch_model.bin": "0" * 64}}))
    refused(lambda: load_model(tmp_path, "float32"), "pytorch_model.bin", "weights as safetensors")


# ---------------------------------------------------------------------- through both engines

MODEL, FAMILY = "models/tiny-pythia-8", "families/tiny-pythia"
EXPERIMENT = next(iter(TINY["theory"]))
THROUGH: dict[str, tuple[Values, tuple[str, ...]]] = {
    "commands, braces, quotes, a line break, no numbers": (
        {
            f"{MODEL}/name": "a; touch pwned {model}'\"",
            f"{MODEL}/input": "../../pipeline",  # which is there without the check
            f"{MODEL}/checkpoint/matrix_learning_rate": float("nan"),
            f"{FAMILY}/name": "$(touch pwned)",
            f"{FAMILY}/prefix_length": -(10**30),
            f"theory/{EXPERIMENT}/name": "x`touch pwned`",
            "benchmarks/tasks": ["tiny_piqa\ntouch pwned"],
        },
        (
            *("tiny-pythia-8.name", "a; touch pwned {model}", "matrix_learning_rate", "nan"),
            *("tiny-pythia.name", "prefix_length", f"theory.{EXPERIMENT}.name"),
            *("tiny_piqa\\ntouch pwned", "remedy:"),
        ),
    ),
    "a study above the project": ({"study": "../../pwned"}, ("remedy:", "study", "../../pwned")),
    # DVC says no more than the name where a result is there
    "a study above the project that is there": ({"study": "../../outside"}, ("../../outside",)),
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("copied") / "below" / "project"
    root.mkdir(parents=True)
    (root.parent / "outside").mkdir()
    (root.parent / "outside/study.json").write_text("not ours")
    copy_files(root)
    commit_all(root)
    return Project(root)


@pytest.mark.slow
@pytest.mark.parametrize("command", [("snakemake", "--cores", "2"), ("dvc", "repro")])
@pytest.mark.parametrize("case", THROUGH)
def test_bad_params_stop_both_engines(copied: Project, command: tuple[str, ...], case: str) -> None:
    edits, said = THROUGH[case]
    values = copy.deepcopy(TINY)
    for path, value in edits.items():
        _put(values, path, value)
    YAML(typ="safe").dump(values, copied.root / "params.yaml")
    done = copied.command(*command, check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    for part in said:
        assert part in output
    assert "Traceback" not in output
    assert not list(copied.root.parents[1].rglob("pwned"))
    assert not (copied.root / "data").exists()
    (outside,) = (copied.root.parent / "outside").iterdir()
    assert outside.read_text() == "not ours", "DVC deletes what a stage is to write"
