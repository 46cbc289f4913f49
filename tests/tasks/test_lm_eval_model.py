"""lm-eval's own command line, with edited blocks and with exported checkpoints."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import datasets
import pytest
from lm_eval.api.registry import get_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.interventions import Intervention, bypassed
from pipeline.interventions.interventions import BASELINE
from pipeline.measure.benchmarks import measure
from pipeline.study.export import export
from pipeline.tasks.lm_eval_model import Bypassed
from pipeline.tasks.loading import load_tasks
from pipeline.workflow.errors import InputError
from tests import own
from tests.project import python

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TASKS = ["own_choice"]
EDITS = ("identity", "zero", "skip")
BLOCKS = (1, 2)

Table = dict[str, tuple[str, str]]
"""Task -> accuracy and its standard error, as they are printed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm-eval")
    own.write_checkpoint(folder / "model", steps=60)
    own.write_tasks(folder / "tasks")
    return folder


@pytest.fixture(scope="module")
def of_the_table(folder: Path) -> dict[str, Table]:
    """What our benchmark table has for each edit, with four digits after the point."""
    model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    listed = [BASELINE, *(Intervention(edit, dict.fromkeys(BLOCKS, edit)) for edit in EDITS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        tasks = load_tasks(TASKS, folder / "tasks")
        tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        frame, _ = measure(model, tokenizer, tasks, listed)
    found: dict[str, Table] = {}
    for row in frame.iter_rows(named=True):
        printed = f"{row['value']:.4f}", f"{row['stderr']:.4f}"
        found.setdefault(row["intervention"], {})[row["task"]] = printed
    return found


def printed(folder: Path, model: str, arguments: str) -> Table:
    """The table that lm-eval prints."""
    command = ["-m", "pipeline", "lm_eval", "--model", model]
    command += ["--model_args", f"{arguments},dtype=float32", "--device", "cpu"]
    command += ["--include_path", ".", "--tasks", ",".join(TASKS), "--batch_size", "8"]
    own = {"HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    # lm-eval looks for the files of a task below the working folder
    done = python(*command, cwd=folder / "tasks", DISABLE_MULTIPROC="1", **own)
    line = r"\|(\w+)\s*\|\s*1\|none\s*\|\s*0\|acc\s*\|↑\s*\|\s*([\d.]+)\|±\s*\|\s*([\d.]+)\|"
    # lm-eval leaves out the zeros at the end that all numbers of a column have
    return {
        task: (f"{float(value):.4f}", f"{float(error):.4f}")
        for task, value, error in re.findall(line, done.stdout)
    }


@pytest.mark.parametrize("edit", EDITS)
def test_the_command_line_prints_what_our_table_has(
    folder: Path, of_the_table: dict[str, Table], edit: str
) -> None:
    arguments = f"pretrained={folder / 'model'},edit={edit},blocks=1+2"
    assert printed(folder, "bypass", arguments) == of_the_table[edit]
    assert set(of_the_table[edit]) == set(TASKS)
    assert of_the_table[edit] != of_the_table["baseline"]


def test_an_exported_checkpoint_scores_the_same_as_a_stock_model(
    folder: Path, of_the_table: dict[str, Table]
) -> None:
    export(str(folder / "model"), "identity", "1,2", folder / "exported")
    assert printed(folder, "hf", f"pretrained={folder / 'exported'}") == of_the_table["identity"]


@pytest.mark.parametrize(
    ("edit", "blocks", "expected"),
    [
        ("vanish", "1", "identity, zero, skip, noise"),
        ("mean", "1", "identity, zero, skip, noise"),
        ("zero", "one", r"such as 20\+21"),
        ("zero", "1+9", "blocks 0 to 3"),
    ],
)
def test_what_cannot_be_edited_is_refused(
    folder: Path, edit: str, blocks: str, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        Bypassed(str(folder / "model"), edit, blocks, device="cpu")


def test_text_is_written_by_the_edited_model(folder: Path) -> None:
    model = Bypassed(str(folder / "model"), "skip", "1+2", device="cpu", dtype="float32")
    stock = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    tokens = model.tokenizer("a text", return_tensors="pt").input_ids
    ours = model._model_generate(tokens, 20, [], do_sample=False)
    with bypassed(stock, Intervention("one", dict.fromkeys(BLOCKS, "skip"))):
        expected = stock.generate(tokens, max_length=20, do_sample=False, pad_token_id=0)
    assert ours.tolist() == expected.tolist()


def test_later_versions_find_the_class_by_its_entry_point() -> None:
    """As lm-eval's guide to plugins has it: the group, and a value that the decorator agrees to."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = project["entry-points"]["lm_eval.models"]
    module, _, name = named["bypass"].partition(":")
    assert getattr(import_module(module), name) is get_model("bypass") is Bypassed
