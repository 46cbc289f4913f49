"""Every kind of bad input, and the error that it gives: no traceback, nothing half-done."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from pipeline.checkpoints.folder import describe_folder
from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.manifest import MANIFEST, read_manifest
from pipeline.checkpoints.verified import load_tokenizer
from pipeline.corpus.schemas import RECORDS
from pipeline.samples import records, schemas
from pipeline.samples.frame import check_samples
from pipeline.study import audit
from pipeline.study.composition import check, load
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from tests.project import Project, commit_all, copy_files

ROOT = Path(__file__).parents[2]
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
    *(7, None, ["a"]),
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
        refused(lambda values=values: check(values), PLACES[place])


def test_a_hostile_argument_is_no_name_of_the_study() -> None:
    study = check(TINY)
    for find in (study.family, study.model):
        for name in filter(lambda name: isinstance(name, str), HOSTILE):
            refused(lambda name=name, find=find: find(name), "one of ")


# ---------------------------------------------------------------------- other values of the params


def test_another_order_is_the_same_study() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(each) for key, each in reversed(value.items())}
        return value

    assert check(turned(TINY)) == check(TINY)


TEXTS = {
    "nothing": b"",
    "a list": b"[]",
    "a number": b"1",
    "a list that does not end": b"study: [",
    "two documents": b"a: 1\n---\na: 2\n",
    "twice the same key": b"study: tiny\nstudy: other\n",
    "python objects": b"study: !!python/object/apply:os.system [touch pwned]\n",
    "not UTF-8": b"study: \xff\xfe\n",
    "UTF-16": "study: tiny\n".encode("utf-16"),
    "a tab": b"study:\n\t- a\n",
    "a cycle": b"&a [*a]\n",
    "deep": b"[" * 1_000,
    "unknown anchor": b"study: *nobody\n",
    "truth of nothing": b"study: !!bool x\n",
    "number of nothing": b"study: !!int ''\n",
    "a list as a key": b"? [a]\n: b\n",
    "null bytes": b"\0" * 100,
    "parquet": b"PAR1" * 8,
}


@pytest.mark.parametrize("case", TEXTS)
def test_bad_texts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes(TEXTS[case])
    refused(load, "params.yaml")
    assert [each.name for each in tmp_path.iterdir()] == ["params.yaml"]


# ---------------------------------------------------------------------- samples

SAMPLES = pl.DataFrame(
    {
        "sample_id": [0, 1],
        "split": ["memorized", "control"],
        "tokens": [[1, 2, 3], [4, 5, 6]],
        "prefix_length": [2, 2],
        "suffix_length": [1, 1],
        "suffix_group": [0, 1],
        "copies": [3, None],
    },
    schema=tables.dtypes(schemas.SAMPLES),
)


def _with(**columns: object) -> pl.DataFrame:
    return SAMPLES.with_columns(
        **{
            name: value
            if isinstance(value, pl.Expr)
            else pl.Series(value, dtype=SAMPLES[name].dtype)
            for name, value in columns.items()
        }
    )


SAMPLE_TABLES: dict[str, tuple[pl.DataFrame, tuple[str, ...]]] = {
    "no rows": (SAMPLES.clear(), ("no samples",)),
    "no columns": (pl.DataFrame(), ("column sample_id", "column tokens")),
    "a column missing": (SAMPLES.drop("split"), ("column split",)),
    "a column renamed": (SAMPLES.rename({"tokens": "Tokens"}), ("column tokens", "Tokens")),
    "signed ids": (SAMPLES.cast({"sample_id": pl.Int64}), ("column sample_id", "Int64")),
    "tokens as text": (_with(tokens=pl.lit("1 2 3")), ("column tokens", "String")),
    "tokens of 64 bits": (SAMPLES.cast({"tokens": pl.List(pl.UInt64)}), ("List(UInt64)",)),
    "lengths with fractions": (SAMPLES.cast({"prefix_length": pl.Float64}), ("Float64",)),
    "a null split": (_with(split=["memorized", None]), ("column split", "1 nulls")),
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
    "an unknown split": (_with(split=["memorized", "Control"]), ("'Control'", "exposed")),
    "an empty split": (_with(split=["memorized", ""]), ("of memorized, exposed, control",)),
}


@pytest.mark.parametrize("case", SAMPLE_TABLES)
def test_bad_samples_are_refused(tmp_path: Path, case: str) -> None:
    frame, said = SAMPLE_TABLES[case]
    frame.write_parquet(tmp_path / "samples.parquet")

    def use() -> None:
        read = tables.read(tmp_path / "samples.parquet", schemas.SAMPLES)
        check_samples(read, vocabulary=10, context=8)

    refused(use, *said)


@pytest.mark.parametrize(
    "frame",
    [
        SAMPLES.reverse(),
        SAMPLES.select(reversed(SAMPLES.columns)),
        _with().with_columns(x=pl.lit(1)),
    ],
    ids=["rows reordered", "columns reordered", "a column more"],
)
def test_samples_may_come_in_any_order(tmp_path: Path, frame: pl.DataFrame) -> None:
    frame.write_parquet(tmp_path / "samples.parquet")
    read = tables.read(tmp_path / "samples.parquet", schemas.SAMPLES)
    check_samples(read, vocabulary=10, context=8)
    assert read.select(frame.columns).equals(frame)


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


# ---------------------------------------------------------------------- an audit


@pytest.mark.parametrize("name", [n for n in HOSTILE if isinstance(n, str)])
def test_a_hostile_name_of_an_audit_is_refused(tmp_path: Path, name: str) -> None:
    asked = audit.Asked(name, str(tmp_path), tmp_path / "samples.csv")
    refused(lambda: audit.study(asked), "--name")


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


def _pickle_renamed(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))


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


def _no_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def _not_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["gpt_neox.final_layer_norm.weight"][1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _index(value: object) -> Callable[[Path], None]:
    return lambda folder: (
        (folder / "model.safetensors.index.json").write_text(json.dumps(value)) and None
    )


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a pickle alone": (_pickle_only, ("no safetensors", "a pickle is never loaded")),
    "a pickle by another name": (_pickle_renamed, ("a safetensors file",)),
    "code of its own": (_remote_code, ("needs no code of its own",)),
    "a tokenizer with code of its own": (_remote_tokenizer, ("needs no code of its own",)),
    "weights that are NaN": (_not_a_number, ("final_layer_norm.weight", "NaN in 1 of ")),
    "no tokenizer": (_no_tokenizer, ("no tokenizer; config.json", "tokenizer.json")),
    "an index of other files": (_index({"weight_map": {"w": "x.safetensors"}}), ("x.safetensors",)),
    "an index of a file above": (_index({"weight_map": {"w": "../x"}}), ("../x",)),
    "an index of numbers": (_index({"weight_map": {"w": 1}}), ("index", "a file for each")),
    "weights by another name": (
        lambda folder: (folder / "model.safetensors").rename(folder / "weights.safetensors"),
        ("the safetensors weights.safetensors", "model.safetensors, or "),
    ),
    "an adapter beside the weights": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        ("adapter_config.json", "merge_and_unload"),
    ),
    "no file at all": (
        lambda folder: [each.unlink() for each in folder.iterdir()],
        ("no safetensors",),
    ),
}


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
    refused(lambda: describe_folder(tmp_path / "out", folder, name="m", family="f"), *said)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name], "no code of theirs ran"


def test_a_checkpoint_with_code_beside_it_is_loaded_without(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known architecture is transformers' own, whatever the repository brings."""
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    _bring_code(folder, "config.json", auto_map={"AutoModelForCausalLM": "odd.Odd"})
    monkeypatch.chdir(tmp_path)
    describe_folder(tmp_path / "out", folder, name="m", family="f")
    assert load_model(tmp_path / "out", "float32").config.model_type == "gpt_neox"
    assert len(load_tokenizer(tmp_path / "out")) == 2
    assert not (tmp_path / "pwned").exists()


GOOD: Values = {
    **{"name": "m", "family": "f", "n_blocks": 1, "width": 8, "n_heads": 1, "context": 8},
    **{"vocabulary": 9, "tokens": 9, "parameters": 9, "dtype": "float32", "seed": None},
    **{"origin": {"recipe": {}}, "files": {"model.safetensors": "0" * 64}},
}
MANIFESTS: dict[str, object] = {
    "a list": [],
    "nothing": None,
    "no keys": {},
    "a key more": {**GOOD, "other": 1},
    "a key less": {key: value for key, value in GOOD.items() if key != "context"},
    "a number as text": {**GOOD, "n_blocks": "1"},
    "a negative number": {**GOOD, "context": -1},
    "a truth for a number": {**GOOD, "vocabulary": True},
    "a fraction": {**GOOD, "parameters": 1.5},
    "files as a list": {**GOOD, "files": ["model.safetensors"]},
    "no checksum": {**GOOD, "files": {"model.safetensors": None}},
    "a file above": {**GOOD, "files": {"../model.safetensors": "0" * 64}},
    "a file far above": {**GOOD, "files": {"a/../../x.safetensors": "0" * 64}},
    "a file of the disk": {**GOOD, "files": {"/etc/x.safetensors": "0" * 64}},
    "a file without a name": {**GOOD, "files": {"": "0" * 64}},
    "an origin as text": {**GOOD, "origin": "hub"},
    "an unknown dtype": {**GOOD, "dtype": "int4"},
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_bad_manifests_are_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(GOOD))
    assert read_manifest(tmp_path).n_blocks == 1
    (tmp_path / MANIFEST).write_text(json.dumps(MANIFESTS[case]))
    refused(lambda: read_manifest(tmp_path), MANIFEST, "the manifest of a checkpoint")


def test_files_that_are_not_those_of_the_manifest_are_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(GOOD))
    refused(lambda: load_model(tmp_path, "float32"), "no such file", "dvc checkout")
    (tmp_path / "model.safetensors").mkdir()
    refused(lambda: load_model(tmp_path, "float32"), "no such file")
    torch.save({"w": torch.zeros(2)}, tmp_path / "other")
    (tmp_path / "model.safetensors").rmdir()
    (tmp_path / "other").rename(tmp_path / "model.safetensors")
    refused(lambda: load_model(tmp_path, "float32"), f"sha256 {'0' * 64}")
    (tmp_path / MANIFEST).write_text(json.dumps({**GOOD, "files": {"pytorch_model.bin": "0" * 64}}))
    refused(lambda: load_model(tmp_path, "float32"), "pytorch_model.bin", "weights as safetensors")


# ---------------------------------------------------------------------- through both engines

MODEL, FAMILY = "models/tiny-pythia-8", "families/tiny-pythia"
EXPERIMENT = next(iter(TINY["theory"]))
THROUGH: dict[str, tuple[Values, tuple[str, ...]]] = {
    "commands for names": (
        {
            f"{MODEL}/name": "a; touch pwned",
            f"{MODEL}/input": "../../pipeline",  # which is there without the check
            f"{FAMILY}/name": "$(touch pwned)",
            f"theory/{EXPERIMENT}/name": "x`touch pwned`",
        },
        ("tiny-pythia-8.name", "a; touch pwned", "tiny-pythia.name", f"theory.{EXPERIMENT}.name"),
    ),
    "braces, quotes, a line break, no numbers": (
        {
            f"{MODEL}/name": "{model}'\"",
            f"{MODEL}/checkpoint/matrix_learning_rate": float("nan"),
            f"{FAMILY}/prefix_length": -(10**30),
            "benchmarks/tasks": ["tiny_piqa\ntouch pwned"],
        },
        ("{model}", "tiny_piqa\\ntouch pwned", "matrix_learning_rate", "nan", "prefix_length"),
    ),
    "a study above the project": ({"study": "../../pwned"}, ("study", "../../pwned")),
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("copied") / "below" / "project"
    root.mkdir(parents=True)
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
    for part in ("remedy:", *said):
        assert part in output
    assert "Traceback" not in output
    assert not list(copied.root.parents[1].rglob("pwned"))
    assert not (copied.root / "data").exists()
