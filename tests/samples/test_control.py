"""Control samples: one window a document, at a place that the seed decides, and none memorized."""

import io

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from pipeline.samples import control
from pipeline.workflow.errors import InputError
from pipeline.workflow.hub import snapshot
from tests.hub import miniatures
from tests.hub.miniatures import parquet
from tests.hub.population import DATASETS, GPT_NEO, PYTHIA
from tests.hub.server import Hub
from tests.project import refused

pytestmark = pytest.mark.usefixtures("hub_home")

PILE_10K = ("NeelNanda/pile-10k", DATASETS["NeelNanda/pile-10k"])
TOKENIZERS = {
    "pythia": ("EleutherAI/pythia-1.4b", PYTHIA["EleutherAI/pythia-1.4b"][0]),
    "gpt-neo": ("EleutherAI/gpt-neo-1.3B", GPT_NEO["EleutherAI/gpt-neo-1.3B"][0]),
}
NONE = np.zeros((0, 64), np.uint32)


def windows(
    n: int = 8,
    seed: int = 0,
    length: int = 64,
    tokenizer: tuple[str, str] = TOKENIZERS["pythia"],
    memorized: NDArray[np.integer] = NONE,
    documents: tuple[str, str] = PILE_10K,
) -> NDArray[np.uint32]:
    return control.control_windows(documents, tokenizer, length, n, seed, memorized)


def texts() -> list[str]:
    files = miniatures.dataset("NeelNanda/pile-10k")
    (path,) = [path for path in files if path.endswith(".parquet")]
    return pl.read_parquet(io.BytesIO(files[path]))["text"].to_list()


def sources(made: NDArray[np.uint32], family: str = "pythia") -> list[int]:
    """The document that each window is of."""
    bpe = miniatures.tokenizer(family)  # type: ignore[arg-type]
    documents = [np.array(bpe.encode(text).ids, dtype=np.uint32) for text in texts()]

    def holds(document: NDArray[np.uint32], window: NDArray[np.uint32]) -> bool:
        if len(document) < len(window):
            return False
        views = np.lib.stride_tricks.sliding_window_view(document, len(window))
        return bool((views == window).all(1).any())

    found = [[i for i, d in enumerate(documents) if holds(d, window)] for window in made]
    assert all(len(each) == 1 for each in found)
    return [each for (each,) in found]


@pytest.mark.parametrize(("family", "length"), [("pythia", 64), ("gpt-neo", 200)])
def test_each_window_is_of_another_document(family: str, length: int) -> None:
    made = windows(length=length, tokenizer=TOKENIZERS[family])
    assert (made.shape, made.dtype) == ((8, length), np.uint32)
    found = sources(made, family)
    assert found == sorted(set(found)), "in the order of the documents"


def test_a_seed_decides_which_documents_and_where() -> None:
    one, again, other = windows(seed=0), windows(seed=0), windows(seed=1)
    assert one.tolist() == again.tolist()
    assert sources(one) != sources(other)
    many = [windows(n=40, seed=seed) for seed in (0, 1)]
    by_document = [dict(zip(sources(made), made.tolist(), strict=True)) for made in many]
    common = by_document[0].keys() & by_document[1].keys()
    moved = [each for each in common if by_document[0][each] != by_document[1][each]]
    assert len(moved) > len(common) / 2 > 5


def test_a_larger_draw_holds_the_smaller_one() -> None:
    few, many = ({tuple(row) for row in windows(n=n).tolist()} for n in (8, 20))
    assert few < many


def test_what_is_memorized_is_passed_over() -> None:
    first = windows()
    assert windows(memorized=first[:0]).tolist() == first.tolist()
    others = windows(memorized=first[[1, 5]].astype(np.int64))
    assert len(others) == 8
    lost = {tuple(row) for row in first.tolist()} - {tuple(row) for row in others.tolist()}
    assert lost == {tuple(first[1].tolist()), tuple(first[5].tolist())}


def test_nothing_but_text_and_tokenizer_is_fetched(hub: Hub) -> None:
    windows()
    fetched = {request.path.rpartition("/")[2] for request in hub.requests("models.*/resolve/")}
    assert not any(name.endswith((".safetensors", ".bin", ".md")) for name in fetched)
    hub.log.clear()
    windows()
    assert hub.log == []


def test_documents_that_are_too_short_do_not_count() -> None:
    """Of the sixty, only some have 300 tokens, and none has 2,000."""
    bpe = miniatures.tokenizer("pythia")
    enough = sum(len(bpe.encode(text).ids) >= 300 for text in texts())
    assert 8 < enough < 60
    assert len(windows(n=enough, length=300)) == enough
    with pytest.raises(InputError, match=f"{enough} documents of 300 tokens or more, of 60"):
        windows(n=enough + 1, length=300)
    problem = refused(windows, length=2000)
    assert "0 documents of 2000 tokens" in str(problem)
    assert problem.expected == "8, as the study says"


def test_documents_without_text_are_passed_over(hub: Hub) -> None:
    holes = parquet({"text": [None, "", *texts()[:20], None]})
    commit = hub.dataset("mini/holes").add({"data/train.parquet": holes})
    made = windows(n=4, documents=("mini/holes", commit))
    assert set(sources(made)) <= set(range(20))


def test_the_files_of_a_dataset_are_taken_together(hub: Hub) -> None:
    parts = {
        f"data/train-{i}.parquet": parquet({"text": texts()[i * 20 : i * 20 + 20]})
        for i in range(3)
    }
    commit = hub.dataset("mini/parts").add(parts)
    assert windows(documents=("mini/parts", commit)).tolist() == windows().tolist()


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (parquet({"content": ["a"]}), "columns content "),
        (b"PAR1", "Parquet"),
        (parquet({"text": [1]}), "text (Int64)"),
        (parquet({"text": [b"a\xff"]}), "text (Binary)"),
    ],
    ids=["another column", "no parquet", "numbers", "bytes"],
)
def test_documents_without_a_column_of_text_are_refused(hub: Hub, content: bytes, got: str) -> None:
    commit = hub.dataset("mini/odd").add({"data/train.parquet": content})
    problem = refused(windows, documents=("mini/odd", commit))
    assert problem.what.startswith("mini/odd")
    assert got in problem.got


@pytest.mark.parametrize("repo", ["EleutherAI/gpt-neo-1.3B", "EleutherAI/gpt-neo-125m"])
def test_the_tokenizer_is_the_same_whatever_ran_before(hub: Hub, repo: str) -> None:
    """Only config.json names the tokenizer of gpt-neo-1.3B."""
    pinned = (repo, GPT_NEO[repo][0])
    alone = windows(tokenizer=pinned).tolist()
    snapshot(*pinned, ["*"])
    assert windows(tokenizer=pinned).tolist() == alone


def test_a_tokenizer_that_cannot_be_read_is_refused(hub: Hub) -> None:
    commit = hub.model("mini/odd").add({"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"})
    with pytest.raises(InputError, match="mini/odd"):
        windows(tokenizer=("mini/odd", commit))
