"""The pages that Snakemake and DVC themselves make of a finished study, without a network."""

import shutil
from zipfile import ZipFile

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)


def test_snakemakes_report_has_the_page_and_the_figures(project, tmp_path):
    figure = project.root / "reports" / "mini" / "figures" / "over-blocks.svg"
    figure.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>')
    project.snakemake("--report", str(tmp_path / "report.zip"))
    with ZipFile(tmp_path / "report.zip") as packed:
        content = {name.rpartition("/")[2]: packed.read(name) for name in packed.namelist()}
    assert content["over-blocks.svg"] == figure.read_bytes()
    assert content["index.html"] == (project.root / "reports" / "mini" / "index.html").read_bytes()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_dvcs_plots_are_drawn_without_a_network(project):
    curves = project.root / "data" / "mini" / "curves"
    (curves / "content").unlink()
    for model in ("p-1.4b", "n-2.7b"):
        (curves / f"{model}.csv").write_text("block,exact_match\n0,0.25\n1,0.75\n")
    project.dvc("plots", "show")
    page = project.root / "dvc_plots" / "index.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        tab.wait_for_function("document.querySelectorAll('.marks').length === 3")
        sizes = [int(mark.get_attribute("width") or 0) for mark in tab.locator(".marks").all()]
        assert [size > 100 for size in sorted(sizes)] == [False, True, True]  # `content` is gone
        assert {address.partition(":")[0] for address in asked} <= {"file", "data", "blob"}
        browser.close()
    ignored = project.command("git", "status", "--porcelain", "--", "dvc_plots")
    assert not ignored.stdout
