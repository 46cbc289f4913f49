"""How to cite a study's figures, as BibTeX."""

import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from pipeline.report.appendices import Numbered
from pipeline.report.provenance import CITATION

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    sign: f"\\{sign}" for sign in "&%$#_{}"
}


def bibtex(study: str, figures: Numbered, git: Mapping[str, Any] | None) -> str:
    """An entry for the paper, one for the software, and one for each figure."""
    cited = YAML(typ="safe").load(CITATION) if CITATION.exists() else {}
    paper = cited.get("preferred-citation", {})
    names = [f"{a['family-names']}, {a['given-names']}" for a in paper.get("authors", ())]
    makers = [f"{{{_plain(author['name'])}}}" for author in cited.get("authors", ())]
    version = [f"version {cited['version']}"] if "version" in cited else []
    version += [f"commit {git['commit']}"] if git else []
    software = {"author": " and ".join(makers), "note": _plain(", ".join(version))}
    entries = [
        _entry(
            "article",
            "paper",
            author=" and ".join(map(_plain, names)),
            title=_plain(str(paper.get("title", ""))),
            journal=_plain(str(paper.get("journal", ""))),
            year=str(paper.get("year", "")),
            url=str(paper.get("url", "")),
        ),
        _entry("software", "software", title=_plain(str(cited.get("title", ""))), **software),
    ]
    for label, figure in figures:
        said = ", ".join(filter(None, (figure.section, figure.title)))
        title = f"Study {study}, figure {label}: {said}"
        entries.append(_entry("misc", f"{study}-{figure.name}", title=_plain(title), **software))
    return "\n".join(entries)


def _entry(kind: str, key: str, **fields: str) -> str:
    told = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@{kind}{{{re.sub(r'[^A-Za-z0-9-]+', '-', key)},\n{told}}}\n"


def _plain(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
