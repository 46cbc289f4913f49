"""What Snakemake's own tools make of a finished study."""

from zipfile import ZipFile


def test_the_report_has_the_page_and_the_figures(project, tmp_path):
    figure = project.root / "reports" / "mini" / "figures" / "over-blocks.svg"
    figure.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>')
    project.snakemake("--report", str(tmp_path / "report.zip"))
    with ZipFile(tmp_path / "report.zip") as packed:
        content = {name.rpartition("/")[2]: packed.read(name) for name in packed.namelist()}
    assert content["over-blocks.svg"] == figure.read_bytes()
    assert content["index.html"] == (project.root / "reports" / "mini" / "index.html").read_bytes()
