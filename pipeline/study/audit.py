"""Audits: studies of a user's own checkpoint and samples or documents, each in its own folder.

An audit is a study that is written and run like any other. Its folder has its own params.yaml
beside links to the code, so that it never touches the study in force and works with both engines;
DVC keeps its results there::

    audits/NAME/   params.yaml data/ reports/ logs/, and links: dvc.yaml Snakefile pipeline …
                   model samples.csv tasks documents reference corpus   links to the user's files
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checkpoints.folder import checkpoint_files, describe, require_tokenizer
from pipeline.checkpoints.manifest import BYTES
from pipeline.interventions.interventions import Group, sweep
from pipeline.measure.listed import named
from pipeline.models.context import context_length
from pipeline.samples.file import samples as cut
from pipeline.samples.frame import check_samples
from pipeline.samples.table_file import KINDS, is_running_text, read
from pipeline.samples.texts import files, texts
from pipeline.study.composition import CONF, check, read_yaml, write
from pipeline.workflow.digest import OWN
from pipeline.workflow.errors import bad_input, shorten
from pipeline.workflow.files import PARAMS, write_text
from pipeline.workflow.hub import Snapshot
from pipeline.workflow.locks import TURN

ROOT = Path(__file__).parents[2]
LINKED = ("CITATION.cff", "Snakefile", "dvc.yaml", OWN, "pipeline", "profiles")
AUDITS = Path("audits")
FAMILY = "audit"

REFERENCE = "reference"
"""The name of the reference model, of its family, and of the link to a reference."""

ORIGIN, COMMITS, WRITTEN = "origin", "commits.json", Path("written")
"""Files of an audit's folder: which model it belongs to; the commits that `commits_of` gives; the
params.yaml that the command wrote last."""

NO_EDITS = "none"
"""In place of the names of edits: the unmodified model alone."""

UNREAD = {
    "repo": "unread/unread", "commit": "0" * 40, "split": "unread", "documents": 1,
    "columns": ["unread"],
}  # fmt: skip
"""Stands for the dataset of a task that is looked up once all else was checked."""

DVC_CONFIG = "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"


@dataclass(frozen=True)
class Asked:
    """The audit that the command line asks for; `pipeline.__main__.audit` describes its options.

    An audit of documents has the longest of them as its samples.
    """

    name: str
    model: str
    samples: Path
    prefix_length: int
    suffix_length: int
    tasks: str | None
    limit: int | None
    num_fewshot: int
    dtype: str | None
    skip_short: bool
    show_text: bool
    threads: int
    token_budget: int | None
    edits: str | None
    document: Path | None
    stride: int
    reference: str | None
    corpus: Path | None

    @property
    def models(self) -> dict[str, str]:
        """Name in the study -> model, of the audited one, and of a reference that is no text."""
        named = {self.name: self.model}
        if self.document and self.reference and not text_of(self.reference):
            named[REFERENCE] = self.reference
        return named

    @property
    def study(self) -> str:
        """The name of the study."""
        return f"audit-{self.name}"

    @property
    def folder(self) -> Path:
        """The audit's folder."""
        return AUDITS / self.name

    @property
    def origin(self) -> str:
        """The origin of the model, on one line, in ASCII.

        Raises:
            InputError: it is neither a folder nor a commit of the hub.
        """
        text = ", ".join(f"{key} {value}" for key, value in origin_of(self.model).items())
        return os.fsencode(text).decode("utf-8", "backslashreplace").replace("\n", "\\n")

    @property
    def shown(self) -> tuple[Path, Path]:
        """The paths of data and report, at the place of any study's results."""
        return Path("data") / self.study, Path("reports") / self.study


def origin_of(model: str, also: str = "") -> dict[str, str]:
    """The origin of a model, as a command names it: a folder, or repo and commit of the hub.

    Raises:
        InputError: it is neither; `also` says what else could be named.
    """
    if Path(model).is_dir():
        return {"folder": str(Path(model).resolve())}
    pinned = re.fullmatch(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})", model)
    if pinned is None:
        hub = "OWNER/NAME@COMMIT with the commit's 40 hexadecimal digits"
        remedy = "name a folder that is there, or a model of the hub"
        expected = f"an existing folder, {also}or {hub}"
        raise bad_input("--model", shorten(model), expected, remedy)
    return pinned.groupdict()


def text_of(reference: str | None) -> Path | None:
    """The reference, if it is a text file."""
    return Path(reference) if reference and Path(reference).is_file() else None


def longest(document: Path, reference: str | None, corpus: Path | None) -> Path:
    """The longest document, once all texts were read.

    Raises:
        InputError: there is no document; or one, or a text of reference or corpus, that is no
            plain text in UTF-8.
    """
    for other in filter(None, (corpus, text_of(reference))):
        texts(other)
    found = texts(document)
    return files(document)[max(found, key=lambda name: len(found[name]))]


def study(asked: Asked, words: Sequence[str] = ()) -> dict[str, Any]:
    """The study of an audit, after its options, models, samples and tasks are checked.

    Nothing is written. What needs no torch, whose import takes seconds, is checked first. The
    report shows the `words` of the command line.

    Raises:
        InputError: invalid options, all at once and before anything is read; another model was
            audited under the name; a model that cannot be evaluated, samples of another tokenizer,
            unknown tasks; and errors of the modules that read hub, folder and file.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,55}", asked.name, re.ASCII):  # audit-NAME has 62
        raise bad_input(
            "--name",
            shorten(asked.name),
            "at most 56 lower-case letters, digits, hyphens, underscores; a letter or digit first",
            "name it otherwise",
        )
    if asked.document and asked.name == REFERENCE:
        raise bad_input("--name", REFERENCE, "another name", "the reference model has this one")
    values = _values(asked, words)
    check(values, "the audit")  # the models' sizes are not known yet, and no task is loaded
    require_unused(asked)
    columns = read(asked.samples).columns
    entries = zip(values["models"].values(), values["families"].values(), strict=True)
    for (name, source), (entry, family) in zip(asked.models.items(), entries, strict=True):
        found = _files(source)
        model, tokens = describe(found, source)
        entry["checkpoint"]["billions"] = model.num_parameters() / 1e9
        if "tokens" not in columns:
            family["samples"]["tokenizer"] = name
        if name == asked.name:
            from pipeline.checkpoints.verified import tokenizer_of

            config: Any = model.config
            lengths, tokenizer = (asked.prefix_length, asked.suffix_length), tokenizer_of(found)
            if asked.tasks:
                from pipeline.measure.benchmarks import require_start  # slow to import

                require_start(tokenizer)
            made = cut(asked.samples, tokenizer, *lengths, skip_short=asked.skip_short)
            check_samples(made, min(config.vocab_size, tokens), context_length(config))
            if asked.document:
                lines = [Group(**line) for line in values["interventions"]]
                listed = sweep(config.get_text_config().num_hidden_layers, lines)
                named("--edits", values["windows"]["interventions"], listed)
        stored = str(model.dtype).removeprefix("torch.")
        if asked.dtype is None and stored in BYTES and stored != "float64":
            values["evaluation"][family["name"]]["dtype"] = stored
    if asked.tasks and Path(asked.tasks).is_dir():
        from pipeline.tasks.loading import load_tasks, tasks_in  # slow to import, rarely needed

        values["benchmarks"]["tasks"] = list(load_tasks(tasks_in(asked.tasks), asked.tasks))
    elif asked.tasks:
        _look_up(asked, values["datasets"][asked.study])
    check(values, "the audit")
    return values


def _files(model: str) -> Snapshot:
    """The files of a model, a tokenizer among them."""
    origin = origin_of(model)
    if "folder" in origin:
        found = checkpoint_files(Path(origin["folder"]))
    else:
        from pipeline.checkpoints.hub import fetch_files

        found = fetch_files(**origin)
    require_tokenizer(found.files, model)
    return found


def _values(asked: Asked, words: Sequence[str]) -> dict[str, Any]:
    """The study that the options say: of models of unknown size, on lists of tokens."""
    lengths = {"prefix_length": asked.prefix_length, "suffix_length": asked.suffix_length}
    shared = read_yaml(ROOT / CONF / "config.yaml")
    fixed = {"baseline_floor": 0.9, "below_floor": "warn", "decode": "all"}
    evaluated = {"dtype": asked.dtype or "float32", **fixed}
    families, models = dict[str, Any](), dict[str, Any]()
    text = {"source": "file", "path": _samples_link(asked.samples), "tokenizer": None}
    for name, model in asked.models.items():
        own, key = name == asked.name, f"{asked.study}-{name}"
        family, link = (FAMILY, "model") if own else (REFERENCE, REFERENCE)
        origin = origin_of(model, "" if own else "a text file, ")
        folder = {"source": "folder", "path": link}
        source = folder if "folder" in origin else {"source": "hub", **origin}
        models[key] = {"name": name, "family": family, "checkpoint": {**source, "billions": 1.0}}
        samples = {**text, "skip_short": asked.skip_short or not own}
        made = {"name": family, **lengths, "samples": samples}
        families[f"{asked.study if own else key}-samples"] = made
    edits = asked.edits or NO_EDITS
    windows = {
        "documents": "documents",
        "reference_text": REFERENCE if text_of(asked.reference) else None,
        "reference": REFERENCE if REFERENCE in asked.models else None,
        "corpus": "corpus" if asked.corpus else None,
        **lengths,
        "stride": asked.stride,
        "interventions": [name.strip() for name in edits.split(",") if edits != NO_EDITS],
    }
    return {
        **{name: shared[name] for name in shared if name not in ("defaults", "derived")},
        "study": asked.study,
        "families": families,
        "models": models,
        "interventions": [
            {"blocks": blocks, "edit": "identity"}
            for blocks in ("each", "quartiles")
            if asked.edits != NO_EDITS
        ],
        **_benchmarks(asked),
        "evaluation": {family["name"]: dict(evaluated) for family in families.values()},
        "report": {"show_text": asked.show_text, "command": command(words)},
        "run": {**shared["run"], "threads": asked.threads, "token_budget": asked.token_budget},
        "windows": windows if asked.document else None,
    }


def _benchmarks(asked: Asked) -> dict[str, Any]:
    """The sections `benchmarks` and `datasets`, unless they are as in any study."""
    if asked.tasks is None:
        return {}
    how = {"num_fewshot": asked.num_fewshot, "limit": asked.limit}
    if Path(asked.tasks).is_dir():
        return {"benchmarks": {"folder": "tasks", "tasks": ["unread"], **how}}
    known, tasks = _known_datasets(), [task.strip() for task in asked.tasks.split(",")]
    datasets = {asked.study: {task: known.get(task, UNREAD) for task in tasks}}
    return {"benchmarks": {"tasks": tasks, **how}, "datasets": datasets}


def _known_datasets() -> dict[str, Any]:
    """Task -> its dataset, of those that the studies pin."""
    found = sorted((ROOT / CONF / "shared/datasets").glob("*.yaml"))
    return {task: pin for file in found for task, pin in read_yaml(file).items()}


def _look_up(asked: Asked, datasets: dict[str, Any]) -> None:
    """Pin the datasets of other tasks; an audit keeps the commits with which it began."""
    params = asked.folder / PARAMS
    begun = read_yaml(params)["datasets"].get(asked.study, {}) if params.is_file() else {}
    for task, pin in datasets.items():
        if pin is not UNREAD:
            continue
        if task not in begun:
            from pipeline.tasks.loading import pinned  # slow to import, rarely needed

            begun[task] = pinned(task, _known_datasets())
        datasets[task] = begun[task]
        print("the dataset of {}: {repo}@{commit}".format(task, **begun[task]), flush=True)


def require_unused(asked: Asked) -> None:
    """Raise if another model was audited under the name; an audit of the same model continues.

    Raises:
        InputError: `asked.model` is neither a folder nor a commit; the audit's folder belongs to
            another model; or `data` or `reports` has a folder of this name that is not an audit's.
    """
    folder, origin = asked.folder, asked.origin
    known = (folder / ORIGIN).read_text("utf-8") if (folder / ORIGIN).is_file() else None
    # what a command that was killed has made before `ORIGIN`
    own = (TURN.parts[0], *(path.name for path in folder.glob(".*.part")))
    claimed = folder.exists() and any(path.name not in own for path in folder.iterdir())
    if known != origin and (known or claimed):
        raise bad_input(
            f"--name: {folder}",
            f"the audit of another model: {known}" if known else "a folder that is no audit",
            f"a name of its own for {origin}",
            f"give another --name, or delete {folder}",
        )
    for link in asked.shown:
        if link.exists() and not link.is_symlink():
            raise bad_input(
                str(link), "a folder", "no such folder", "give another --name, or move it"
            )


def commits_of(name: str) -> dict[str, str]:
    """Model as an audit of this name was given it -> OWNER/NAME@COMMIT, which it keeps."""
    file = AUDITS / name / COMMITS
    return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {}


def prepare(asked: Asked, commits: Mapping[str, str] | None = None) -> None:
    """Create the audit's folder, or its missing parts; the caller writes its params.yaml.

    The caller has taken the folder's turn, so no other audit prepares it. `commits_of` then gives
    the commits.

    Raises:
        InputError: the package does not come from a clone; or as `require_unused`.
    """
    if missing := [name for name in LINKED if not (ROOT / name).exists()]:
        raise bad_input(str(ROOT), f"no {', '.join(missing)}", "a clone of the project", "clone it")
    require_unused(asked)
    folder = asked.folder
    # before anything else, so that the same command continues wherever it was killed
    write_text(folder / ORIGIN, asked.origin)
    write_text(folder / COMMITS, json.dumps(commits or {}))
    for old in folder.glob("samples*"):
        old.unlink()
    links: dict[str, Any] = {name: ROOT / name for name in LINKED}
    links |= {_samples_link(asked.samples): asked.samples, "model": asked.model}
    links |= {"tasks": asked.tasks, "documents": asked.document}
    if asked.document:
        links |= {REFERENCE: asked.reference, "corpus": asked.corpus}
    for name, target in links.items():
        if target and Path(target).exists():
            _link(folder / name, Path(target).absolute())
    write_text(folder / ".dvc" / "config", DVC_CONFIG)
    for link in asked.shown:
        link.parent.mkdir(exist_ok=True)
        _link(link, Path("..") / folder / link)


def write_params(values: Mapping[str, Any]) -> None:
    """Write the params.yaml of the audit whose folder this is.

    Raises:
        InputError: it was edited since the command wrote it last.
    """
    before = PARAMS.read_text("utf-8") if PARAMS.is_file() else ""
    if WRITTEN.is_file() and before not in ("", WRITTEN.read_text("utf-8")):
        raise bad_input(
            str(PARAMS.absolute()),
            "edits that this command would discard",
            "the file as the command wrote it",
            "run `dvc repro` in that folder, which keeps them; or delete the file to discard them",
        )
    write(values, PARAMS)
    write_text(WRITTEN, PARAMS.read_text("utf-8"))


def command(words: Sequence[str]) -> str:
    """A command line of the package for bash, with unprintable bytes escaped in ASCII."""
    return " ".join(["python -m pipeline", *map(_quoted, words)])


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    letters = (
        chr(b) if 32 <= b < 127 and chr(b) not in "'\\" else f"\\x{b:02x}"
        for b in os.fsencode(word)
    )
    return "$'" + "".join(letters) + "'"


def _samples_link(samples: Path) -> str:
    """The name of the samples file in the audit's folder, in plain ASCII."""
    if is_running_text(samples):
        return "samples.txt"
    suffix = samples.suffix.lower()
    return f"samples{suffix if suffix in KINDS else '.parquet'}"


def _link(link: Path, target: Path) -> None:
    """Point a link at the target, atomically, so that the link always exists."""
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
