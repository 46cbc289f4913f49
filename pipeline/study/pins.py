"""Writes into a study file which commits its branches stand for now.

A study pins whole commits, since a branch can move. Where a study file names a branch or a tag
instead (``commit: main``), `pin` asks the hub for its commit and writes that in its place; nothing
else of the file changes, not even its comments.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError

from pipeline.study.composition import CONF
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.files import write_text
from pipeline.workflow.hub import Kind, commit_of

WHOLE = re.compile(r"[0-9a-f]{40}")

MODELS = ("checkpoint", "tokenizer")
"""Keys of repositories of models; all others are of datasets."""


def pin(study: str, conf: Path = CONF) -> list[str]:
    """Replace every branch and tag in CONF/study/STUDY.yaml by its commit.

    Returns:
        One line per replaced branch; none where all were commits already.

    Raises:
        InputError: there is no such file, it is not YAML, there is no network, or the hub lacks
            some of the repositories or branches; the file is then left as it is.
    """
    path = conf / "study" / f"{study}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
        branches = dict(_branches(YAML().load(text)))
    except (OSError, ValueError, YAMLError) as error:
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        expected = f"the YAML file of a study: {known}"
        raise bad_input(str(path), shorten(str(error)), expected, "name one of these") from error
    lines = text.splitlines(keepends=True)
    made, problems = list[str](), list[Problem]()
    for (line, column), (repo, branch, kind) in sorted(branches.items(), reverse=True):
        try:
            commit = commit_of(repo, branch, kind)
        except InputError as error:
            problems += error.problems
            continue
        before, after = lines[line][:column], lines[line][column:]
        lines[line] = before + after.replace(branch, commit, 1)
        made.append(f"{repo}: {branch} is {commit}")
    if problems:
        raise InputError(*problems)
    if made:
        write_text(path, "".join(lines))
    return made[::-1]


def pinned(model: str, kept: str | None = None) -> str:
    """A model of the command line, a branch of the hub replaced by its commit, which is printed.

    OWNER/NAME stands for its branch ``main``; what is no branch of a repository stays as it is.
    `kept` is the OWNER/NAME@COMMIT that the name has stood for; None: it is looked up.

    Raises:
        InputError: the hub has no such repository or branch, or cannot be asked.
    """
    named = re.fullmatch(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<branch>[\w./-]+))?", model)
    if named is None or Path(model).exists() or WHOLE.fullmatch(named["branch"] or ""):
        return model
    try:
        found = kept or f"{named['repo']}@{commit_of(named['repo'], named['branch'] or 'main')}"
    except InputError as error:
        expected, remedy = "an existing folder, or a model of the hub", "correct the name"
        nothing = Problem(model, "no folder, and not found on the hub:", expected, remedy)
        raise InputError(nothing, *error.problems) from error
    print(f"{model} is {found}", flush=True)
    return found


def _branches(node: Any, key: str = "") -> Iterator[tuple[tuple[int, int], tuple[str, str, Kind]]]:
    """Line and column -> repository, branch and kind, of each `commit` that is none."""
    if isinstance(node, CommentedMap):
        # merged keys belong to another place of the file
        own = {name for name, _ in node.non_merged_items()}
        if "repo" in node and "commit" in own and not WHOLE.fullmatch(str(node["commit"])):
            kind: Kind = "model" if key in MODELS else "dataset"
            yield node.lc.value("commit"), (str(node["repo"]), str(node["commit"]), kind)
            return
        for name in own:
            yield from _branches(node[name], str(name))
    elif isinstance(node, CommentedSeq):
        for each in node:
            yield from _branches(each, key)
