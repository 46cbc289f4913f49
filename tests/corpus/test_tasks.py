import contextlib
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.corpus.baselines import Frequencies, baselines
from pipeline.corpus.planted import Corpus
from pipeline.corpus.tasks import TASKS, write_tasks
from tests.corpus.conftest import assert_lm_eval_reads

CHANCE = {"tiny_arc_easy": 0.25, "tiny_hellaswag": 0.25, "tiny_piqa": 0.5}
"""Accuracy of a blind guess."""


@pytest.mark.parametrize("name", TASKS)
def test_the_items_are_distinct_and_enough_and_fit_into_a_row(corpus: Corpus, name: str) -> None:
    items = [TASKS[name].item(document) for document in corpus.documents[name]]
    assert len(items) == (128 if name == "tiny_wikitext" else 512)
    assert len({item.context or item.choices[0] for item in items}) == len(items)
    assert all(len(set(item.choices)) == len(item.choices) for item in items)
    texts = [f"{item.context} {choice}" for item in items for choice in item.choices]
    longest = max(map(len, corpus.tokenizer(texts)["input_ids"]))
    assert longest <= 63, "a row, after an end-of-text"


@pytest.mark.parametrize("name", CHANCE)
def test_the_tokens_of_a_context_begin_those_of_the_whole(corpus: Corpus, name: str) -> None:
    for document in corpus.documents[name]:
        item = TASKS[name].item(document)
        context = corpus.tokenizer.backend_tokenizer.encode(item.context).ids
        whole = corpus.tokenizer.backend_tokenizer.encode(f"{item.context} {item.choices[0]}").ids
        assert whole[: len(context)] == context


def test_without_attention_only_chance_is_reached(corpus: Corpus) -> None:
    reached = baselines(
        corpus.documents,
        TASKS,
        Frequencies(corpus.rows, 640),
        lambda text: list(corpus.tokenizer.backend_tokenizer.encode(text).ids),
        end=0,
    )
    for name, chance in CHANCE.items():
        error = math.sqrt(chance * (1 - chance) / 512)
        assert set(reached[name]) == {"guess", "unigram", "bigram", "shortest", "longest"}
        for scorer, accuracy in reached[name].items():
            assert accuracy == pytest.approx(chance, abs=3 * error), (name, scorer)
    assert max(reached["tiny_lambada_openai"].values()) < 0.2
    perplexities = reached["tiny_wikitext"]
    assert perplexities["bigram"] < perplexities["unigram"]


def test_the_right_place_is_equally_frequent(corpus: Corpus) -> None:
    for name in CHANCE:
        items = [TASKS[name].item(document) for document in corpus.documents[name]]
        count = len(items[0].choices)
        for place in range(count):
            share = sum(item.answer == place for item in items) / len(items)
            assert share == pytest.approx(1 / count, abs=0.07)


def test_lm_eval_loads_and_renders_every_task(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    from lm_eval.tasks import TaskManager

    folder = tmp_path / "tasks"
    folder.mkdir()
    write_tasks(folder, corpus.documents, TASKS, BLIND)
    with contextlib.chdir(folder):
        loaded = TaskManager(include_path=".", include_defaults=False).load(list(TASKS))["tasks"]
    assert_lm_eval_reads(loaded, TASKS, corpus)


def test_the_folder_of_tasks_holds_no_absolute_path_and_states_what_chance_reaches(
    corpus: Corpus, tmp_path: Path
) -> None:
    write_tasks(tmp_path, corpus.documents, TASKS, BLIND)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(texts) == 2 * len(TASKS)
    assert not [name for name, text in texts.items() if str(tmp_path) in text]
    first = json.loads(texts["tiny_piqa.jsonl"].splitlines()[0])
    assert set(first) == {"goal", "sol1", "sol2", "label", "category"}
    # the best without attention
    config = YAML(typ="safe").load(texts["tiny_lambada_openai.yaml"])
    assert config["metadata"] == {"version": 1.0, "chance": 0.375, "category": "category"}
    config = YAML(typ="safe").load(texts["tiny_wikitext.yaml"])
    assert config["metadata"] == {"version": 1.0}


@pytest.mark.parametrize("name", [name for name in TASKS if name != "tiny_wikitext"])
def test_the_categories_are_many_and_about_equal(corpus: Corpus, name: str) -> None:
    sizes = Counter(document["category"] for document in corpus.documents[name])
    assert len(sizes) >= 20
    assert max(sizes.values()) <= 2.5 * min(sizes.values())


BLIND = {name: {"guess": 0.25, "bigram": 0.375} for name in TASKS}
