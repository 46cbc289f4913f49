"""A run that cannot fetch what it needs says so once, before any job."""

import pytest
from huggingface_hub import constants

from pipeline.plan.downloads import check, require_downloads
from pipeline.study import composition
from pipeline.study.schema import Study
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError
from pipeline.workflow.network import NoNetworkError
from tests.project import composed

pytestmark = pytest.mark.usefixtures("hub_home")

NOWHERE = "http://127.0.0.1:9"


def stages(*addresses: str) -> list[Stage]:
    return [Stage(address, (), ()) for address in addresses]


@pytest.fixture
def small() -> Study:
    return composition.check(composed("small"))


@pytest.mark.parametrize("offline", [False, True])
def test_all_that_would_be_fetched_is_named_once(small, monkeypatch, offline):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    require_downloads(small, stages("theory@small-lookup", "report@small"))  # which fetch nothing
    with pytest.raises(NoNetworkError) as caught:
        require_downloads(small, stages("datasets@small", "checkpoint@small-pythia-70m"))
    (problem,) = caught.value.problems
    assert "baber/piqa" in problem.what
    assert "EleutherAI/pythia-70m" in problem.what
    assert ("HF_HUB_OFFLINE is set" if offline else NOWHERE) in problem.got
    assert "STUDY=tiny" in problem.remedy


def test_files_that_are_not_on_the_hub_have_a_remedy_of_their_own(small, monkeypatch):
    """Where the hub answers, and the host of GPT-Neo's samples does not."""
    source = small.family("gpt-neo").samples
    lost = {source.url: "no connection"}
    monkeypatch.setattr("pipeline.plan.downloads.unreachable", lost.get)
    with pytest.raises(NoNetworkError) as caught:
        require_downloads(small, stages("samples@small-gpt-neo"))
    (problem,) = caught.value.problems
    assert problem.what == f"to fetch {source.url}"
    assert "run.pile_folder" in problem.remedy
    assert "HF_HOME" not in problem.remedy


def test_a_pin_that_is_not_there_or_does_not_fit_is_told(hub, small):
    hub.datasets.pop("baber/piqa")
    files = hub.model("EleutherAI/pythia-70m").files()
    pickles = {name: data for name, data in files.items() if "safetensors" not in name}
    commit = hub.model("EleutherAI/pythia-70m").resolve("main")
    hub.model("EleutherAI/pythia-70m").add(pickles, commit)
    with pytest.raises(InputError) as caught:
        check(small, stages("datasets@small", "checkpoint@small-pythia-70m"))
    missing, unfit = caught.value.problems
    assert missing.what.startswith("baber/piqa")
    assert unfit.expected == "*.safetensors"
    assert not hub.requests("parquet|pytorch_model.bin$")
