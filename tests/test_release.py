"""What a release says of itself agrees, and its forms are what the platform reads."""

import re
import tomllib
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITED = YAML(typ="safe").load(ROOT / "CITATION.cff")
LOWEST = PROJECT["requires-python"].removeprefix(">=")


def test_one_version_one_date_one_license_and_one_address():
    latest = re.search(r"^## \[(.+?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest
    assert latest.groups() == (CITED["version"], CITED["date-released"].isoformat())
    assert PROJECT["version"] == CITED["version"]
    assert PROJECT["license"] == CITED["license"] == "MIT"
    assert "MIT License" in (ROOT / "LICENSE").read_text()
    assert PROJECT["urls"].get("Repository") == CITED.get("repository-code")


def test_the_badges_and_the_first_classifier_are_true():
    badges = re.findall(r"badge/(\S+?)-(\S+?)-\w+\)", (ROOT / "README.md").read_text())
    paper = CITED["preferred-citation"]["url"].rpartition("/")[2]
    assert dict(badges) == {"python": f"{LOWEST}%2B", "license": "MIT", "arXiv": paper}
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert named[0] == LOWEST


def test_the_tested_set_installs_on_the_lowest_python():
    """Its first patch release, since distributions keep an early one: Debian 12 has 3.11.2."""
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    named = {f"{found.name}=={found.version.partition('+')[0]}": found for found in distributions()}
    tested = [found for name, found in named.items() if name in pinned]
    allowed = {found.name: found.metadata["Requires-Python"] or "" for found in tested}
    assert "torch" in allowed
    refused = {name for name, need in allowed.items() if f"{LOWEST}.0" not in SpecifierSet(need)}
    assert not refused


@pytest.mark.parametrize("form", sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir()), ids=str)
def test_an_issue_form(form):
    made = YAML(typ="safe").load(form)
    assert made["name"]
    assert made["description"]
    fields = [field for field in made["body"] if field["type"] in ("input", "textarea")]
    assert fields == made["body"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_the_workflow_catalog_lists_it():
    """Its criteria for any workflow, and the form of its file."""
    readme = (ROOT / "README.md").read_text().lower()
    assert "snakemake" in readme
    assert "workflow" in readme
    usage = YAML(typ="safe").load(ROOT / ".snakemake-workflow-catalog.yml")["usage"]
    deployment = usage["software-stack-deployment"]
    assert set(deployment) == {"conda", "apptainer", "apptainer+conda", "report"}
    assert deployment["apptainer"] == ("container:" in (ROOT / "Snakefile").read_text())
    assert set(usage["mandatory-flags"]) == {"desc", "flags"}


def test_the_image_is_that_of_the_tested_set():
    """One version of Python, and one name of the image wherever it is made or used."""
    recipe = (ROOT / "Dockerfile").read_text()
    assert f"\nFROM docker.io/library/python:{LOWEST}-" in recipe
    assert f"on Python {LOWEST}." in (ROOT / "constraints.txt").read_text()
    image = re.search(r'^container: "(.+)"$', (ROOT / "Snakefile").read_text(), re.M)
    assert image
    assert image[1] in recipe
    assert image[1] in (ROOT / "docs/clusters.md").read_text()


def test_the_image_has_nothing_that_git_ignores():
    """But the results of studies, which `.dockerignore` leaves out with their folders."""
    names = [
        {line.strip("/").removeprefix("**/") for line in (ROOT / file).read_text().splitlines()}
        for file in (".gitignore", ".dockerignore", ".dvc/.gitignore")
    ]
    ignored = {
        name for name in names[0] if name and not name.startswith(("#", "data/", "reports/"))
    }
    assert ignored | {f".dvc/{name}" for name in names[2] if name} <= names[1]
    assert {"data/*", "reports/*"} <= names[1]


def test_the_site_links_to_the_repository():
    found = spec_from_file_location("repository", ROOT / "docs" / "_hooks" / "repository.py")
    hook = module_from_spec(found)
    found.loader.exec_module(hook)
    for remote in (
        "https://git.example.org/lab/study.git",
        "https://user:token@git.example.org/lab/study",
        "git@git.example.org:lab/study.git",
        "ssh://git@git.example.org:2222/lab/study.git/",
    ):
        assert hook.address(remote) == "https://git.example.org/lab/study"
    for remote in ("/home/lab/study", "../study.git", "file:///home/lab/study", ""):
        assert hook.address(remote) is None
    assert "docs/_hooks/repository.py" in (ROOT / "mkdocs.yml").read_text()
