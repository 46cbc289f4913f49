"""Benchmarks against lm-eval's own evaluation of a model that was bypassed by hand."""

import copy
import io
import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace

import datasets
import lm_eval
import polars as pl
import pytest
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from ruamel.yaml import YAML
from transformers import (
    AutoModelForCausalLM,
    GPTNeoConfig,
    GPTNeoXConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pipeline.interventions.interventions import BASELINE, bypass
from pipeline.measure import benchmarks, schemas
from pipeline.measure.benchmarks import measure, require_start
from pipeline.measure.sharded import Running
from pipeline.tasks import loading
from pipeline.tasks.datasets import fetch_datasets
from pipeline.tasks.loading import describe, load_tasks
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from pipeline.workflow.shards import open_shards
from tests import own
from tests.hub.miniatures import ROWS
from tests.hub.population import DATASETS, PINNED
from tests.project import refused

INTERVENTIONS = [BASELINE, bypass("block-00", (0,)), bypass("pair", (1, 2))]
N = 9
ACC = {"metric": "acc", "aggregation": "mean", "higher_is_better": True}
ACC_NORM = ACC | {"metric": "acc_norm"}


def documents_of(repo: str) -> list[dict]:
    """As those of the dataset, questions with three, four and five choices among them."""
    rng = random.Random(repo)
    return [ROWS[repo][0](rng, number, "validation") for number in range(N)]


def chosen(text: str, choices: str, target: str, metrics: list[dict]) -> dict:
    return {
        "output_type": "multiple_choice",
        "doc_to_text": text,
        "doc_to_choice": choices,
        "doc_to_target": target,
        "metric_list": metrics,
    }


PERPLEXITY = {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}
ROLLING = ("word_perplexity", "byte_perplexity", "bits_per_byte")
LAMBADA = {
    "output_type": "loglikelihood",
    "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
    "doc_to_target": "{{' '+text.split(' ')[-1]}}",
    "metric_list": [PERPLEXITY, ACC],
    "metadata": {"chance": 0.125, "category": "text"},
}
INDEX = "{{choices.label.index(answerKey)}}"
PIQA = chosen("Question: {{goal}}\nAnswer:", "{{[sol1, sol2]}}", "label", [ACC, ACC_NORM])
TASKS = {
    "mini_arc": (
        "allenai/ai2_arc",
        chosen("Question: {{question}}\nAnswer:", "{{choices.text}}", INDEX, [ACC]),
    ),
    "mini_hellaswag": (
        "Rowan/hellaswag",
        chosen("{{ctx}}", "endings", "{{label|int}}", [ACC, ACC_NORM]),
    ),
    "mini_piqa": ("baber/piqa", PIQA),
    "mini_lambada": ("EleutherAI/lambada_openai", LAMBADA),
    "mini_wikitext": (
        "EleutherAI/wikitext_document_level",
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{page}}",
            "metric_list": [{"metric": name} for name in ROLLING],
        },
    ),
}
CAT_SITS = {"text": "the cat sits"}


def write_task(folder: Path, name: str, documents: list[dict], config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    base = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
    }
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(d) + "\n" for d in documents))
    with (folder / f"{name}.yaml").open("w") as file:
        YAML().dump(base | config, file)


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep `datasets` from writing to the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    for name, (repo, config) in TASKS.items():
        write_task(folder / "deeper", name, documents_of(repo), config)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that a word is one token or several, with its space before it."""
    lines = [document["text"] for document in documents_of("EleutherAI/lambada_openai")]
    return own.write_tokenizer(tmp_path_factory.mktemp("tokenizer"), lines)


def a_reader(family: str, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """A tiny random model with that tokenizer's vocabulary, and a context of 64 tokens."""
    torch.manual_seed(0)
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if family == "neox":
        config = GPTNeoXConfig(num_hidden_layers=3, num_attention_heads=4, **common)
    else:
        types = [[["global", "local", "global"], 1]]
        config = GPTNeoConfig(
            num_layers=3, num_heads=4, attention_types=types, window_size=8, **common
        )
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    return model.eval()


@pytest.fixture(scope="module")
def reader(tokenizer) -> PreTrainedModel:
    return a_reader("neo", tokenizer)


@pytest.fixture(scope="module")
def readers(tokenizer) -> dict[str, PreTrainedModel]:
    """One of each family, trained until it knows how some of mini_lambada's sentences end."""
    texts = [document["text"] for document in documents_of("EleutherAI/lambada_openai")]
    rows = [torch.tensor(tokenizer(text).input_ids) for text in texts]
    made = {}
    for family in ("neo", "neox"):
        model = made[family] = a_reader(family, tokenizer)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(8):
            for row in rows[:6]:
                optimizer.zero_grad()
                model(row[None], labels=row[None]).loss.backward()
                optimizer.step()
    return made


def bypassed_by_hand(
    model: PreTrainedModel, blocks: tuple[int, ...], with_identity_softmax
) -> PreTrainedModel:
    """A copy in which attention passes each position's own value on."""
    if hasattr(model, "gpt_neox"):
        return with_identity_softmax(model, blocks)
    model = copy.deepcopy(model)
    for block in blocks:
        model.transformer.h[block].attn.attention._attn = lambda q, k, v, mask=None: (v, None)
    return model


def by_lm_eval(model, tokenizer, tasks, monkeypatch, limit, num_fewshot) -> dict:
    """lm-eval's results for the model, by its own loop, without its pool of processes."""
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda *_: None)  # seconds, for nothing
    return lm_eval.simple_evaluate(
        HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8),
        tasks=list(tasks.values()),
        task_manager=TaskManager(include_defaults=False),  # or it reads all of lm-eval's own tasks
        bootstrap_iters=benchmarks.BOOTSTRAP_DRAWS,
        limit=limit,
        num_fewshot=num_fewshot,
    )


def values(frame: pl.DataFrame, *key: str) -> dict[tuple, dict]:
    return {tuple(row[k] for k in key): row for row in frame.iter_rows(named=True)}


@pytest.mark.parametrize("family", ["neo", "neox"])
@pytest.mark.parametrize(
    ("limit", "num_fewshot"), [(None, None), (4, 2), (0.5, 0)], ids=["whole", "4-of-9", "half"]
)
def test_results_equal_lm_eval_on_a_model_bypassed_by_hand(
    tokenizer, folder, monkeypatch, with_identity_softmax, readers, family, limit, num_fewshot
):
    reader = readers[family]
    names = [name for name in TASKS if num_fewshot is None or name != "mini_wikitext"]

    def loaded():
        return load_tasks(names, folder, num_fewshot)

    frame, documents = measure(reader, tokenizer, loaded(), INTERVENTIONS, Running(3200), limit)
    ours = values(frame, "intervention", "task", "metric")
    own = values(documents, "intervention", "task", "metric", "doc_id")
    assert len(ours) == len(frame)
    seen = seen_documents = 0
    for intervention in INTERVENTIONS:
        edited = bypassed_by_hand(reader, intervention.blocks, with_identity_softmax)
        theirs = by_lm_eval(edited, tokenizer, loaded(), monkeypatch, limit, num_fewshot)
        for name in names:
            result = theirs["results"][name]
            for metric, higher in theirs["higher_is_better"][name].items():
                row = ours[intervention.name, name, metric]
                assert row["value"] == pytest.approx(result[f"{metric},none"], rel=1e-5)
                stderr = result[f"{metric}_stderr,none"]
                expected = None if stderr == "N/A" else pytest.approx(stderr, rel=1e-5)
                assert row["stderr"] == expected
                assert row["n"] == theirs["n-samples"][name]["effective"]
                assert row["higher_is_better"] == higher
                seen += 1
                for sample in theirs["samples"][name]:
                    row = own[intervention.name, name, metric, sample["doc_id"]]
                    value = sample[metric]
                    value, weight = value if isinstance(value, tuple) else (value, 1)
                    assert row["value"] == pytest.approx(value, rel=1e-5)
                    assert row["weight"] == weight
                    seen_documents += 1
    assert seen == len(frame) >= 3 * 7
    if limit is None:
        accuracies = {ours[each.name, "mini_lambada", "acc"]["value"] for each in INTERVENTIONS}
        assert len(accuracies) > 1, "some continuations should be greedy, others not"
    assert seen_documents == len(documents) > len(frame)


@pytest.fixture(scope="module")
def measured(reader, tokenizer, folder):
    return measure(reader, tokenizer, load_tasks(list(TASKS), folder), INTERVENTIONS, Running(3200))


def test_the_frames_fit_their_tables(measured, tmp_path):
    tables.write(measured[0], tmp_path / "b.parquet", schemas.BENCHMARKS, {})
    tables.write(measured[1], tmp_path / "d.parquet", schemas.BENCHMARK_DOCUMENTS, {})
    names = measured[0]["intervention"].unique(maintain_order=True)
    assert names.to_list() == ["baseline", "block-00", "pair"]
    assert measured[0]["task"].unique(maintain_order=True).to_list() == list(TASKS)


def test_chance_is_stated_where_there_is_one(measured):
    chance = values(measured[0].filter(intervention="baseline"), "task", "metric")
    assert chance["mini_arc", "acc"]["chance"] == pytest.approx((7 / 4 + 1 / 5 + 1 / 3) / 9)
    assert chance["mini_hellaswag", "acc"]["chance"] == 0.25
    assert chance["mini_hellaswag", "acc_norm"]["chance"] == 0.25
    assert chance["mini_piqa", "acc_norm"]["chance"] == 0.5
    for task, metric in chance:
        if metric == "perplexity" or task == "mini_wikitext":
            assert chance[task, metric]["chance"] is None
    assert chance["mini_lambada", "acc"]["chance"] == 0.125  # as its metadata say


def test_the_category_is_that_of_the_field_that_the_metadata_name(measured):
    documents = documents_of("EleutherAI/lambada_openai")
    texts = dict(enumerate(document["text"] for document in documents))
    rows = measured[1].filter(task="mini_lambada")
    assert dict(rows.select("doc_id", "category").iter_rows()) == texts
    assert measured[1].filter(task="mini_piqa")["category"].null_count() > 0
    assert measured[1].drop_nulls("category")["task"].unique().to_list() == ["mini_lambada"]


def assert_same_but_for_rounding(measured, expected):
    for ours, theirs in zip(measured, expected, strict=True):
        rounded = ours.drop("value", "stderr", strict=False)
        assert rounded.equals(theirs.drop("value", "stderr", strict=False))
        assert ours["value"].to_list() == pytest.approx(theirs["value"].to_list(), rel=1e-5)
        accuracy = pl.col("metric").str.starts_with("acc")
        assert ours.filter(accuracy).equals(theirs.filter(accuracy))


def test_a_table_depends_neither_on_its_shards_nor_on_the_batch_size(
    reader, tokenizer, folder, measured, tmp_path
):
    tasks = load_tasks(list(TASKS), folder)
    done = []

    def progress(*call):
        done.append(call)

    def sharded(minutes):
        with open_shards(tmp_path / "partial/benchmarks/model", minutes, {}) as shards:
            made = measure(
                reader, tokenizer, tasks, INTERVENTIONS, Running(3200, progress, shards=shards)
            )
            return made, shards.told()

    one = measure(reader, tokenizer, tasks, INTERVENTIONS, Running(1, progress))
    assert len(done) > len(TASKS) * N, "a row at a time"
    assert done[-1][0] == done[-1][1]
    assert_same_but_for_rounding(one, measured)

    done.clear()
    made, told = sharded(2e-7)
    assert told["computed"] == told["total"] > len(TASKS)
    assert done == sorted(done)
    assert done[-1][0] == done[-1][1]
    assert_same_but_for_rounding(made, measured)
    for path in list(tmp_path.rglob("*.safetensors"))[::2]:
        path.unlink()
    again, told = sharded(2e-7)
    assert 0 < told["reused"] < told["total"]
    assert all(ours.equals(before) for ours, before in zip(again, made, strict=True))


def test_each_distinct_item_is_scored_once(reader, tokenizer, tmp_path, monkeypatch):
    documents = [CAT_SITS, {"text": "the dog sits"}, CAT_SITS]
    write_task(tmp_path, "mini_lambada", documents, LAMBADA)
    scored = []

    def engine(model, requests, *rest, **named):
        scored.extend(requests)
        return original(model, requests, *rest, **named)

    original = benchmarks.score
    monkeypatch.setattr(benchmarks, "score", engine)
    frame, own = measure(
        reader, tokenizer, load_tasks(["mini_lambada"], tmp_path), [BASELINE], Running(3200)
    )
    assert len(scored) == 2
    assert frame["n"].to_list() == [3, 3]
    twice = own.filter(metric="perplexity")["value"]
    assert twice[0] == twice[2] != twice[1]


def test_contexts_that_are_cut_are_told(reader, tokenizer, tmp_path, caplog):
    write_task(tmp_path, "mini_lambada", [{"text": "the cat " * 60 + "sits"}], LAMBADA)
    tasks = load_tasks(["mini_lambada"], tmp_path)
    with caplog.at_level(logging.WARNING):
        measure(reader, tokenizer, tasks, [BASELINE], Running(400))
    assert "1 of 1 contexts lose tokens on the left: the model sees 64 at once" in caplog.text


def test_local_tasks_need_no_network_and_print_nothing(
    reader, tokenizer, folder, monkeypatch, capsys
):
    """One document of each; a standard error needs more."""
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host))
    frame, _ = measure(
        reader, tokenizer, load_tasks(list(TASKS), folder), [BASELINE], Running(3200), limit=1
    )
    assert asked == []
    assert "".join(capsys.readouterr()) == ""
    assert set(frame["n"]) == {1}
    assert frame["stderr"].null_count() == len(frame)


def test_unknown_tasks_are_refused_with_the_known_ones(folder):
    with pytest.raises(InputError, match=r"nope, none[\s\S]*mini_arc, mini_hellaswag"):
        load_tasks(["nope", "mini_arc", "none"], folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            LAMBADA | {"output_type": "generate_until", "metric_list": [{"metric": "exact_match"}]},
            "output_type[\\s\\S]*generate_until",
        ),
        (
            LAMBADA | {"filter_list": [{"name": "a", "filter": [{"function": "take_first"}]}]},
            "filter_list",
        ),
        (PIQA | {"metric_list": [ACC, ACC | {"metric": "mcc"}]}, "metric mcc"),  # no one number
    ],
)
def test_tasks_that_cannot_be_measured_are_refused(reader, tokenizer, tmp_path, config, message):
    document = CAT_SITS | {"goal": "a cat", "sol1": "sits", "sol2": "runs", "label": 0}
    write_task(tmp_path, "odd", [document], config)
    with pytest.raises(InputError, match=f"task odd, {message}"):
        measure(reader, tokenizer, load_tasks(["odd"], tmp_path), [BASELINE], Running(400))


CODE = "import pathlib\npathlib.Path('{ran}').touch()\n\ndef f(document):\n    return ''\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"odd.yaml": "doc_to_text: !function code.f\n"}, "!function"),
        ({"odd.yaml": "doc_to_text: !!python/object/apply:os.system ['touch {ran}']\n"}, "python"),
        (
            {"odd.yaml": "include: more.txt\n", "more.txt": "doc_to_text: !function code.f\n"},
            "more",
        ),
        ({"odd.yaml": "include: ../outside.yaml\n"}, "outside"),
        ({"odd.yaml": "task_list:\n- metric_list: [{metric: {folder}/evil}]\n"}, "metric_list"),
        ({"odd.yaml": "use_prompt: promptsource:*\n"}, "use_prompt"),
        ({"more.yaml": "metric_list: [{metric: acc, hf_evaluate: true}]\n"}, "metric_list"),
        ({"more.yaml": "dataset_path: pandas\n"}, "dataset_path"),
        ({"more.yaml": "dataset_kwargs: {data_files: {test: [../x.jsonl]}}\n"}, "dataset_kwargs"),
        ({"more.yaml": "dataset_kwargs: {data_files: https://a/x.jsonl}\n"}, "dataset_kwargs"),
        ({"more.yaml": "dataset_kwargs: {data_dir: /}\n"}, "dataset_kwargs"),
        ({"odd.yaml": "doc_to_text: [\n"}, "task file"),
        (
            {
                "odd.yaml": 'doc_to_text: "{{ cycler.__init__.__globals__.os'
                ".popen('touch {ran}').read() }}\"\n"
            },
            r"templates[\s\S]*unsafe",
        ),
    ],
)
def test_no_code_of_a_folder_is_run(tmp_path, files, message):
    folder, ran = tmp_path / "tasks", tmp_path / "ran"
    write_task(folder, "odd", [CAT_SITS], LAMBADA)
    (folder / "code.py").write_text(CODE.replace("{ran}", str(ran)))
    (folder / "evil").mkdir()
    (folder / "evil/evil.py").write_text(CODE.replace("{ran}", str(ran)))
    (tmp_path / "outside.yaml").write_text("doc_to_text: !function tasks/code.f\n")
    for name, added in files.items():
        path = folder / name
        before = path.read_text().replace("doc_to_text", "description") if path.exists() else ""
        path.write_text(before + added.replace("{ran}", str(ran)).replace("{folder}", str(folder)))
    with pytest.raises(InputError, match=message):
        load_tasks(["odd"], folder)
    assert not ran.exists()


# ---------------------------------------------------------------------- lm-eval's own tasks

OFFICIAL = {"arc_easy": 1, "hellaswag": 1, "lambada_openai": 1, "piqa": 1, "wikitext": 2}
"""Task -> its version."""


@pytest.fixture
def fetched(hub_home, tmp_path, monkeypatch) -> Path:
    """The datasets of the five tasks, and from now on no hub."""
    from huggingface_hub import constants

    fetch_datasets(tmp_path / "datasets", PINNED)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path / "datasets"


@pytest.fixture
def nobody_asked(fetched, monkeypatch):
    """No connection is tried, once the datasets are there."""
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *_, **__: asked.append(host))
    monkeypatch.setattr("socket.socket.connect", lambda _, address: asked.append(address))
    yield
    assert asked == []


@pytest.mark.usefixtures("nobody_asked")
def test_the_official_tasks_load_from_the_folder_alone_and_are_described(hub, fetched):
    hub.log.clear()
    tasks = load_tasks(list(OFFICIAL), fetched, num_fewshot=2)
    described = describe(tasks, fetched)
    assert list(tasks) == list(described) == list(OFFICIAL)
    for name, task in tasks.items():
        pin, entry = PINNED[name], described[name]
        file = task.config.dataset_kwargs["data_files"][pin["split"]]
        assert file == str((fetched / name / f"{pin['split']}.parquet").resolve())
        assert set(pin["columns"]) <= set(task.dataset[pin["split"]].column_names)
        assert entry["version"] == OFFICIAL[name]
        assert (entry["num_fewshot"], entry["documents"]) == (2, 8)
        assert (entry["repo"], entry["commit"]) == (pin["repo"], pin["commit"])
        assert entry["commit"] == DATASETS[entry["repo"]]
    assert json.loads(json.dumps(described)) == described
    assert len({entry["documents_sha256"] for entry in described.values()}) == len(OFFICIAL)
    assert hub.log == []


def test_nothing_of_an_official_task_differs_but_where_its_data_lies(fetched, monkeypatch):
    """Each task as it is loaded here, and lm-eval's own on the same data."""
    loaded = load_tasks(list(OFFICIAL), fetched)
    by_repo = {PINNED[name]["repo"]: task.dataset for name, task in loaded.items()}
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **_: by_repo[path])
    lm_evals = loading._official(list(OFFICIAL)).load(list(OFFICIAL))["tasks"]
    for name, one in loaded.items():
        other = lm_evals[name]
        ours, theirs = one.config.to_dict(), other.config.to_dict()
        assert theirs["dataset_path"] == PINNED[name]["repo"]
        differing = {key for key in ours | theirs if ours.get(key) != theirs.get(key)}
        assert differing <= {"dataset_path", "dataset_name", "dataset_kwargs", "num_fewshot"}
        assert one.config.num_fewshot == (other.config.num_fewshot or 0) == 0
        for task in (one, other):
            task.build_all_requests()
        assert [r.args for r in one.instances] == [r.args for r in other.instances]
        assert len(one.instances) >= 8
        assert one.aggregation() == other.aggregation()
        assert one.higher_is_better() == other.higher_is_better()


@pytest.mark.usefixtures("nobody_asked")
def test_the_official_tasks_are_measured(reader, tokenizer, fetched, tmp_path):
    tasks = load_tasks(list(OFFICIAL), fetched)
    frame, documents = measure(reader, tokenizer, tasks, INTERVENTIONS, Running(3200), limit=3)
    tables.write(frame, tmp_path / "b.parquet", schemas.BENCHMARKS, {})
    assert set(frame["n"]) == {3}
    assert frame["task"].unique(maintain_order=True).to_list() == list(OFFICIAL)
    assert set(frame.filter(task="wikitext")["metric"]) == set(ROLLING)
    assert len(documents) == len(frame) * 3


def test_the_checksum_of_the_documents_is_that_of_each_of_them(tmp_path):
    documents = [CAT_SITS, {"text": "the dog eats"}]

    def checksum(name: str, documents: list[dict]) -> dict:
        write_task(tmp_path / name, "mini_lambada", documents, LAMBADA)
        tasks = load_tasks(["mini_lambada"], tmp_path / name)
        return describe(tasks, tmp_path / name)["mini_lambada"]

    first = checksum("a", documents)
    assert "repo" not in first, "a task of the corpus has none"
    assert first["documents"] == 2
    assert checksum("b", documents) == first
    others = [
        [CAT_SITS, {"text": "the dog eat"}],
        documents[::-1],
        documents[:1],
        [*documents, documents[0]],
    ]
    made = {checksum(f"c{i}", other)["documents_sha256"] for i, other in enumerate(others)}
    assert len(made | {first["documents_sha256"]}) == 5
    dated = [{**each, "asked": "2024-03-05"} for each in documents]  # which `datasets` makes dates
    assert checksum("dated", dated)["documents_sha256"] not in made


def test_a_task_whose_dataset_was_not_fetched_is_refused(fetched):
    with pytest.raises(InputError, match=r"openbookqa[\s\S]*arc_easy"):
        load_tasks(["piqa", "openbookqa"], fetched)


def test_another_revision_is_not_taken_for_one_that_was_read_before(hub, fetched, monkeypatch):
    """The library itself would: it goes by the names of the files."""
    from huggingface_hub import constants

    (before,) = load_tasks(["lambada_openai"], fetched).values()
    pinned = PINNED["lambada_openai"]
    files = hub.dataset(pinned["repo"]).files()
    content = io.BytesIO()
    rows = pl.read_parquet(io.BytesIO(files["default/test/default.parquet"]))
    rows.select(text="now " + pl.col("text")).write_parquet(content)
    changed = {**files, "default/test/default.parquet": content.getvalue()}
    commit = hub.dataset(pinned["repo"]).add(changed)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fetch_datasets(fetched, {"lambada_openai": pinned | {"commit": commit}})
    (after,) = load_tasks(["lambada_openai"], fetched).values()
    assert [document["text"] for document in after.eval_docs] == [
        f"now {document['text']}" for document in before.eval_docs
    ]


@pytest.mark.parametrize(
    "change", [{"repo": "other/piqa"}, {"name": "other"}, {"split": "test"}], ids=str
)
def test_a_dataset_that_is_not_the_tasks_is_refused(fetched, change):
    index = fetched / "datasets.json"
    pinned = json.loads(index.read_text())
    pinned["piqa"] |= change
    index.write_text(json.dumps(pinned))
    problem = refused(load_tasks, ["arc_easy", "piqa"], fetched)
    assert "the dataset of piqa" in str(problem)
    assert problem.expected.startswith("repo baber/piqa, name None, split validation")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: [p.unlink() for p in (folder / "arc_easy").rglob("*test*.parquet")],
        lambda folder: [p.write_bytes(b"x") for p in (folder / "arc_easy").rglob("*.parquet")],
    ],
    ids=["a split is gone", "no parquet"],
)
def test_a_folder_that_was_damaged_is_refused(fetched, damage):
    damage(fetched)
    problem = refused(load_tasks, ["arc_easy", "piqa"], fetched)
    assert "the datasets in " in str(problem)
    assert "run the stage that fetches it" in problem.remedy


def test_a_tokenizer_without_a_token_to_begin_with_is_refused():
    require_start(SimpleNamespace(bos_token_id=None, eos_token_id=0))
    with pytest.raises(InputError, match="neither a bos nor an eos token"):
        require_start(SimpleNamespace(bos_token_id=None, eos_token_id=None))
