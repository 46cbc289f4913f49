"""Audit of one's own checkpoint on one's own samples: a study in a folder of its own."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from pipeline.analysis.rows import SUMMARY
from pipeline.plan.downloads import wants
from pipeline.study import audit
from pipeline.study.composition import write
from pipeline.study.pins import pinned
from pipeline.study.schema import Study
from pipeline.tasks.datasets import fetch_datasets
from pipeline.tasks.loading import load_tasks
from pipeline.workflow import tables
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError
from pipeline.workflow.locks import TURN
from tests import own
from tests.project import python, started

COMMIT = "0" * 40

SMALL_SHARDS = """
import pipeline.study.audit
made = pipeline.study.audit.study
def study(*arguments):
    values = made(*arguments)
    return {**values, "run": {**values["run"], "shard_minutes": 2e-4}}
pipeline.study.audit.study = study
from pipeline.__main__ import main
main()
"""
"""The command, in shards of some milliseconds."""


@contextmanager
def interrupted(stage: str, *words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """An audit called mine, once two shards of a stage are kept; killed in the end."""
    with started("-c", SMALL_SHARDS, *words, cwd=cwd) as running:
        shards = f"audits/mine/data/*/partial/{stage}/*/*/*.safetensors"
        while len(list(cwd.glob(shards))) < 2:
            assert running.poll() is None, running.communicate()
            time.sleep(0.05)
        yield running
        os.killpg(running.pid, signal.SIGKILL)


def test_what_needs_no_torch_is_refused_without_it(asked, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.csv").write_text("text\n")
    code = """if True:
        import sys
        from pathlib import Path
        from pipeline.__main__ import audit
        from pipeline.workflow.errors import InputError

        right = {"model": sys.argv[1], "samples": Path("text.txt"), "name": "mine"}
        for wrong in ({"name": "a/b"}, {"samples": Path("empty.csv")}, {"model": "empty"}):
            try:
                audit(**right | wrong)
            except InputError as error:
                print(len(error.problems))
            assert not {"torch", "transformers"} & set(sys.modules), wrong
    """
    assert python("-c", code, asked.model, cwd=tmp_path).stdout.split() == ["1", "1", "1"]


@pytest.mark.parametrize("model", ["nowhere", "a/b", "a/b@main", f"a/b@{COMMIT[:39]}", "a@b@c"])
def test_a_model_that_is_neither_folder_nor_commit_is_refused(model, asked):
    with pytest.raises(InputError, match="OWNER/NAME@COMMIT"):
        audit.require_unused(replace(asked, model=model))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", name) for name in ("", "a/b", "..", "-x", "a b", "a\n", "Ab", "a.b")),
        ("threads", 100_000),
        ("prefix_length", 65_536),
        ("suffix_length", 10**5000),
        ("token_budget", 2**31),
        ("limit", 10**30),
        ("num_fewshot", 2**31),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_no_study_takes_are_refused(field, value, asked, tmp_path):
    """Before the model is read, and as in any study."""
    (tmp_path / "empty").mkdir()
    changed = {"model": str(tmp_path / "empty"), "tasks": "arc_easy", field: value}
    with pytest.raises(
        InputError, match=r"(the audit: |--name).*\n +got: .*\n +expected: .*\n +rem"
    ) as caught:
        audit.study(replace(asked, **changed))
    wanted = {"name": "--name", "threads": "run.threads"}.get(field, field)
    assert any(re.search(wanted, problem.what) for problem in caught.value.problems)


def test_the_same_command_is_printed_for_any_name():
    names = ["a b.csv", "it's.csv", "100%$(x).csv", os.fsdecode(b"\xff'\n.csv")]
    for name in names:
        said = audit.command(["audit", "--samples", name])
        said.encode()
        script = said.replace("python -m pipeline", "printf '%s\\0'")
        printed = subprocess.run(["bash", "-c", script], capture_output=True).stdout
        assert os.fsencode(name) in printed.split(b"\0")


def test_a_task_that_nobody_offers_is_refused(asked):
    with pytest.raises(InputError, match=r"--tasks[\s\S]*nothing_such[\s\S]*arc_easy"):
        audit.study(replace(asked, tasks="arc_easy,nothing_such"))


@pytest.mark.usefixtures("hub_home")
def test_a_task_of_lm_evals_is_pinned_when_the_audit_begins(asked, hub, capsys, tmp_path):
    """`sciq`, whose dataset no study pins; later the branch moves."""
    columns = ("question", "correct_answer", "distractor1", "distractor2", "distractor3", "support")
    content = io.BytesIO()
    pl.DataFrame({column: ["a", "b", "c"] for column in columns}).write_parquet(content)
    splits = ("train", "validation", "test")
    files = {f"data/{split}-00000-of-00001.parquet": content.getvalue() for split in splits}
    commit = hub.dataset("allenai/sciq").add(files)
    one = replace(asked, tasks="arc_easy,sciq")
    values = audit.study(one)
    pin = values["datasets"]["audit-mine"]["sciq"]
    assert pin == {
        **{"repo": "allenai/sciq", "commit": commit, "name": None, "split": "test"},
        **{"documents": 3, "columns": list(columns)},
    }
    assert f"allenai/sciq@{commit}" in capsys.readouterr().out
    fetch_datasets(tmp_path / "datasets", {"sciq": pin})
    assert len(load_tasks(["sciq"], tmp_path / "datasets")["sciq"].eval_docs) == 3
    write(values, one.folder / "params.yaml")
    hub.dataset("allenai/sciq").add({**files, "moved.txt": b""})
    (one.folder / audit.ORIGIN).write_text(one.origin)
    hub.log.clear()
    assert audit.study(one)["datasets"] == values["datasets"]
    assert hub.log == []


@pytest.mark.usefixtures("hub_home")
def test_a_model_of_the_hub_is_pinned_when_the_audit_begins(hub, capsys, tmp_path):
    first = hub.model("own/model").add({"config.json": b"{}"})
    hub.model("own/model").add({"config.json": b"{ }"}, ref="step1")
    step = hub.model("own/model").refs["step1"]
    assert pinned("own/model") == f"own/model@{first}"
    assert f"own/model is own/model@{first}" in capsys.readouterr().out
    assert pinned("own/model@step1") == f"own/model@{step}"
    hub.model("own/model").add({"config.json": b"{  }"})
    hub.log.clear()
    for same in (f"own/model@{step}", str(tmp_path), "tiny-neo-8"):
        assert pinned(same) == same
    assert pinned("own/model", f"own/model@{first}") == f"own/model@{first}", "the branch has moved"
    assert hub.log == []
    with pytest.raises(InputError, match=r"no folder, and not found on the hub[\s\S]*step2"):
        pinned("own/model@step2")


def test_tasks_that_cannot_be_fetched_end_it_before_the_first_job(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    words = ["audit", "--model", asked.model, "--samples", "text.txt", "--tasks", "arc_easy"]
    words += ["--prefix-length", "8", "--suffix-length", "8"]
    done = python("-m", "pipeline", *words, cwd=tmp_path, check=False)
    assert done.returncode == 2, done.stderr
    assert "to fetch allenai/ai2_arc" in done.stderr
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert "Running stage" not in done.stdout + done.stderr
    assert not Path("audits/model/data").exists()


def test_samples_beyond_the_context_are_refused_before_anything_is_written(asked, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="the model's context"):
        audit.study(replace(asked, prefix_length=60))
    assert sorted(tmp_path.iterdir()) == before


def test_another_model_is_not_audited_under_the_name_of_one(asked, model, tmp_path):
    audit.prepare(asked)
    audit.require_unused(asked)
    shutil.copytree(model, tmp_path / "other")
    with pytest.raises(InputError, match="the audit of another model"):
        audit.require_unused(replace(asked, model=str(tmp_path / "other")))


def test_edits_of_its_params_are_not_discarded(asked, monkeypatch):
    audit.prepare(asked)
    monkeypatch.chdir(asked.folder)
    audit.write_params(audit.study(replace(asked, model="model", samples=Path("samples.txt"))))
    again = audit.study(replace(asked, model="model", samples=Path("samples.txt"), edits="none"))
    audit.write_params(again)  # with other options
    params = Path("params.yaml")
    edited = params.read_text().replace("seed: 0", "seed: 1", 1)
    params.write_text(edited)
    with pytest.raises(InputError, match="edits that this command would discard"):
        audit.write_params(again)
    assert params.read_text() == edited
    params.unlink()
    audit.write_params(again)
    assert audit.read_yaml(params)["interventions"] == []


@pytest.mark.parametrize("links", range(len(audit.LINKED) + 2))
def test_killed_while_its_folder_is_made_the_same_command_goes_on(links, asked, monkeypatch):
    class Killed(BaseException):
        pass

    make_link, calls = audit._link, iter(range(100))

    def killed(link: Path, target: Path) -> None:
        if next(calls) == links:
            raise Killed
        make_link(link, target)

    (asked.folder / TURN).parent.mkdir(parents=True)
    (asked.folder / TURN).touch()
    audit.require_unused(asked)  # killed before anything else was written
    monkeypatch.setattr(audit, "_link", killed)
    with pytest.raises(Killed):
        audit.prepare(asked)
    monkeypatch.setattr(audit, "_link", make_link)
    audit.require_unused(asked)
    audit.prepare(asked)
    assert all((asked.folder / name).exists() for name in (*audit.LINKED, "model", "samples.txt"))


def test_a_commit_is_kept_for_the_name_that_it_was_asked_by(asked):
    """Another branch of the repository, or its use as a reference, is another name."""
    assert audit.commits_of(asked.name) == {}
    commits = {"own/model@step1": "own/model@1", "own/model": "own/model@2"}
    audit.prepare(asked, commits)
    assert audit.commits_of(asked.name) == commits


def test_a_model_of_the_hub_with_a_file_of_samples_can_be_planned(asked):
    """And the model that a document is compared with has a precision of its own."""
    hub = f"own/model@{COMMIT}"
    values = audit._values(replace(asked, model=hub), ["--model", hub])
    wanted = wants(Study.model_validate(values), Stage("checkpoint@audit-mine-mine", (), ()))
    assert [want.repo for want in wanted] == ["own/model"]
    document = replace(asked, document=asked.samples, reference=asked.model)
    both = audit._values(document, [])["evaluation"]
    assert len({id(each) for each in both.values()}) == len(both) == 2


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("audits/mine/notes.txt", "a folder that is no audit"),
        ("audits/mine/data/a.parquet", "a folder that is no audit"),
        ("reports/audit-mine/a.html", "reports/audit-mine"),
    ],
)
def test_a_folder_of_other_files_is_no_audit(path, said, asked):
    Path(path).parent.mkdir(parents=True)
    Path(path).touch()
    with pytest.raises(InputError, match=said):
        audit.require_unused(asked)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_and_repeated_it_goes_on_to_a_page(model, tmp_path):
    """One command, with benchmarks of one's own, in a folder that holds nothing else."""
    text = tmp_path / os.fsdecode(b"a 'text' \xff 100%.csv")
    with text.open("wb") as file:
        pl.DataFrame({"text": own.text().splitlines()}).write_csv(file)
    mine = tmp_path / "model"
    shutil.copytree(model, mine)
    own.write_tasks(tmp_path / "tasks")
    words = ["audit", "--model", str(mine), "--samples", str(text), "--name", "mine"]
    words += ["--tasks", "tasks", "--prefix-length", "8", "--suffix-length", "8"]
    with interrupted("*", *words, cwd=tmp_path) as first:
        os.killpg(first.pid, signal.SIGSTOP)  # with the stage that it runs: it must not end first
        second = python("-m", "pipeline", *words, cwd=tmp_path, check=False)
        assert f"a run is at work in it: process {first.pid} on " in second.stderr
        assert second.returncode == 2
    assert (tmp_path / "audits/mine" / TURN).exists()

    again = python("-c", SMALL_SHARDS, *words, cwd=tmp_path)
    said = again.stdout + again.stderr
    assert "resuming: " in said
    assert "'checkpoint@audit-mine-mine' didn't change, skipping" in said
    assert "again: python -m pipeline audit --model" in said
    page = tmp_path / "reports/audit-mine/index.html"
    html = page.read_text("utf-8")
    assert "Not all of the study is here" not in html
    assert "own_choice" in html
    summary = tables.read(tmp_path / "data/audit-mine/summary.parquet", SUMMARY)
    assert set(summary["task"]) == {"memorization", "own_choice", "own_last_word"}

    # another architecture under the same path is found out before the page goes
    config = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps({**config, "model_type": "gpt_neox"}))
    refused = python("-m", "pipeline", *words, cwd=tmp_path, check=False)
    assert "got: " in refused.stderr
    assert refused.returncode == 2
    assert page.read_text("utf-8") == html
