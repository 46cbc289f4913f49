"""A run that cannot fetch what it needs says so once, before any job."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from pipeline.plan.downloads import check, require_downloads
from pipeline.samples.schema import Pile
from pipeline.study.composition import compose
from pipeline.study.schema import Study
from pipeline.workflow.dag import Stage
from pipeline.workflow.errors import InputError
from pipeline.workflow.network import NoNetworkError
from tests.hub.server import Hub
from tests.project import ROOT

NOWHERE = "http://127.0.0.1:9"


def stages(*addresses: str) -> list[Stage]:
    return [Stage(address, (), ()) for address in addresses]


@pytest.fixture
def small(tmp_path: Path) -> Study:
    return compose({"study": "small"}, ROOT / "pipeline/conf", tmp_path / "params.yaml")


@pytest.mark.usefixtures("hub_home")
@pytest.mark.parametrize("offline", [False, True])
def test_all_that_would_be_fetched_is_named_once(
    small: Study, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(NoNetworkError) as caught:
        require_downloads(small, stages("datasets@small", "checkpoint@small-pythia-70m"))
    (problem,) = caught.value.problems
    assert "baber/piqa" in problem.what
    assert "EleutherAI/pythia-70m" in problem.what
    assert ("HF_HUB_OFFLINE is set" if offline else NOWHERE) in problem.got
    assert "STUDY=tiny" in problem.remedy


@pytest.mark.usefixtures("hub_home")
def test_files_that_are_not_on_the_hub_have_a_remedy_of_their_own(
    small: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the hub answers, and the host of GPT-Neo's samples does not."""
    source = small.family("gpt-neo").samples
    assert isinstance(source, Pile)
    lost = {source.url: "no connection"}
    monkeypatch.setattr("pipeline.plan.downloads.unreachable", lost.get)
    with pytest.raises(NoNetworkError) as caught:
        require_downloads(small, stages("samples@small-gpt-neo"))
    (problem,) = caught.value.problems
    assert problem.what == f"to fetch {source.url}"
    assert "run.pile_folder" in problem.remedy
    assert "HF_HOME" not in problem.remedy


@pytest.mark.usefixtures("hub_home")
def test_what_fetches_nothing_needs_no_network(
    small: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    require_downloads(small, stages("theory@small-lookup", "report@small"))


@pytest.mark.usefixtures("hub_home")
def test_a_pin_that_is_not_there_or_does_not_fit_is_told(hub: Hub, small: Study) -> None:
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
