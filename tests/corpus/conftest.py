from collections.abc import Mapping
from typing import Any

import pytest

from pipeline.corpus.generated import generate
from pipeline.corpus.planted import Corpus
from pipeline.corpus.tasks import Task
from pipeline.corpus.world import World, make_world


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """A corpus with the tiny study's tasks and world, and fewer records."""
    return generate(
        seed=0,
        row_length=64,
        vocabulary=640,
        world_tokens=512_000,
        records={1: 4, 16: 4, 32: 8},
        control_records=8,
        task_items=512,
    )


@pytest.fixture(scope="session")
def world() -> World:
    """The world of `corpus`."""
    return make_world(seed=0, held_out_animals=128)


def assert_lm_eval_reads(
    loaded: Mapping[str, Any], tasks: Mapping[str, Task], corpus: Corpus
) -> None:
    """What lm-eval asks of a document is what the task's item says."""
    assert set(loaded) == set(tasks)
    for name, task in loaded.items():
        documents = list(task.test_docs())
        assert len(documents) == len(corpus.documents[name])
        for document in documents[:40]:
            item, context = tasks[name].item(document), task.doc_to_text(document)
            made = task.construct_requests(document, context, metadata=(name, 0, 1), doc_id=0)
            made = made if isinstance(made, list) else [made]
            asked = [(item.context, f" {choice}") for choice in item.choices]
            asked = asked if item.context else [(item.choices[0],)]
            assert [request.args for request in made] == asked
            right = item.answer if len(item.choices) > 1 else item.choices[0]
            assert str(task.doc_to_target(document)).removeprefix(" ") == str(right)
