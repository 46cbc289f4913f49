"""Audits: studies of a user's own checkpoint and samples, each in its own folder.

An audit runs like any other study. Its folder has its own params.yaml beside links to the code, so
that it never touches the study in force and works with both engines; DVC keeps its results there::

    audits/NAME/   params.yaml data/ reports/ logs/, and links: dvc.yaml Snakefile pipeline …
                   model samples.csv tasks   links to the user's files
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checkpoints.folder import checkpoint_files, describe, require_tokenizer
from pipeline.checkpoints.hub import fetch_files
from pipeline.checkpoints.manifest import BYTES
from pipeline.checkpoints.verified import encoder, tokenizer_of
from pipeline.models.context import context_length
from pipeline.samples.file import samples as cut
from pipeline.samples.frame import check_samples
from pipeline.samples.table_file import is_running_text, read
from pipeline.study.composition import CONF, read_yaml
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.files import write_text
from pipeline.workflow.locks import TURN

ROOT = Path(__file__).parents[2]
LINKED = ("CITATION.cff", "Snakefile", "dvc.yaml", "pipeline", "profiles")
AUDITS = Path("audits")
FAMILY = "audit"
ORIGIN = "origin"
"""The file of an audit's folder that says which model it belongs to."""

DVC_CONFIG = "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"

NAME_LENGTH = 56
MOST_THREADS = 4
"""Largest number of threads per CPU; more is probably a typing mistake."""


@dataclass(frozen=True)
class Asked:
    """The audit that the command line asks for.

    Args:
        name: of the audit.
        model: a folder, or OWNER/NAME@COMMIT of the hub.
        samples: a file, as `samples.table_file` reads it.
        prefix_length: P, tokens.
        suffix_length: S, tokens.
        tasks: names of lm-eval's tasks, separated by commas, or a folder of its YAML files; None:
            no benchmarks.
        limit: documents per task; None: all.
        num_fewshot: examples before each question.
        dtype: of the weights; None: as stored.
        skip_short: leave out samples that are too short.
        show_text: show samples as text on the page.
        threads: CPU threads.
        token_budget: tokens at once; None: as many as fit into memory.
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

    @property
    def study(self) -> str:
        """The name of the study."""
        return f"audit-{self.name}"

    @property
    def folder(self) -> Path:
        """The audit's folder."""
        return AUDITS / self.name

    @property
    def origin(self) -> dict[str, str]:
        """The origin of the model: a folder, or repo and commit of the hub.

        Raises:
            InputError: it is neither.
        """
        return origin_of(self.model)


def origin_of(model: str, also: str = "") -> dict[str, str]:
    """The origin of a model: a folder, or repo and commit of the hub.

    Args:
        model: the model as given on the command line.
        also: other valid kinds of names, for the error.

    Raises:
        InputError: it is neither.
    """
    if Path(model).is_dir():
        return {"folder": str(Path(model).resolve())}
    pinned = re.fullmatch(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})", model)
    if pinned is None:
        raise bad_input(
            "--model",
            shorten(model),
            f"an existing folder, {also}or OWNER/NAME@COMMIT with the commit's 40 "
            "hexadecimal digits",
            "look the commit up on the hub: a branch or a tag could move",
        )
    return pinned.groupdict()


def require_sound(asked: Asked) -> None:
    """Reject invalid names and numbers, all at once, before anything is read.

    Raises:
        InputError: lists them with the valid values.
    """
    problems = []
    if not re.fullmatch(rf"[a-z0-9][a-z0-9_-]{{0,{NAME_LENGTH - 1}}}", asked.name, re.ASCII):
        problems.append(
            Problem(
                "--name",
                shorten(asked.name),
                f"at most {NAME_LENGTH} lower-case letters, digits, hyphens, underscores; a letter "
                "or digit first",
                "name it otherwise",
            )
        )
    most = MOST_THREADS * (os.cpu_count() or 1)
    for flag, value, largest, why in (
        ("--threads", asked.threads, most, f", {MOST_THREADS} for each CPU of this machine"),
        ("--prefix-length", asked.prefix_length, 2**16 - 1, ", tokens"),
        ("--suffix-length", asked.suffix_length, 2**16 - 1, ", tokens"),
        ("--token-budget", asked.token_budget, 2**31 - 1, ", tokens"),
        ("--limit", asked.limit, 2**31 - 1, ", documents per task"),
        ("--num-fewshot", asked.num_fewshot, 100, ", examples"),
    ):
        if value is not None and value > largest:
            expected = f"at most {largest}{why}"
            problems.append(Problem(flag, shorten(value), expected, "lower it"))
    if problems:
        raise InputError(*problems)


def require_unused(asked: Asked) -> None:
    """Raise if another model was audited under the name; an audit of the same model continues.

    Raises:
        InputError: `asked.model` is neither a folder nor a commit; the audit's folder belongs to
            another model; or `data` or `reports` has a folder of this name that is not an audit's.
    """
    path, origin = asked.folder / ORIGIN, _on_one_line(asked.origin)
    known = path.read_text("utf-8") if path.is_file() else None
    if known != origin and not (known is None and _unclaimed(asked.folder)):
        raise bad_input(
            f"--name: {asked.folder}",
            f"the audit of another model: {known}" if known else "a folder that is no audit",
            f"a name of its own for {origin}",
            f"give another --name, or delete {asked.folder}",
        )
    for link in _shown(asked):
        if link.exists() and not link.is_symlink():
            raise bad_input(
                str(link), "a folder", "no such folder", "give another --name, or move it"
            )


def study(asked: Asked, offered: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The study of an audit, after its model, samples and tasks are checked; writes nothing.

    Args:
        asked: the audit.
        offered: ``tasks``: names of the tasks of the folder that `asked` names, if it names one.

    Raises:
        InputError: a model that cannot be evaluated, samples of another tokenizer, unknown tasks;
            and errors of the modules that read hub, folder and file.
    """
    origin, own = asked.origin, Path(asked.model).is_dir()
    files = (
        checkpoint_files(Path(asked.model))
        if own
        else fetch_files(origin["repo"], origin["commit"])
    )
    model, tokens = describe(files, asked.model)
    require_tokenizer(files.files, asked.model)
    config: Any = model.config
    made = cut(
        asked.samples,
        encoder(tokenizer_of(files)),
        asked.prefix_length,
        asked.suffix_length,
        skip_short=asked.skip_short,
    )
    check_samples(made, min(config.vocab_size, tokens), context_length(config))
    needs_tokenizer = "tokens" not in read(asked.samples).columns
    stored = str(model.dtype).removeprefix("torch.")
    dtype = asked.dtype or (stored if stored in BYTES and stored != "float64" else "float32")
    key = f"{asked.study}-{asked.name}"
    source: dict[str, Any] = (
        {"source": "folder", "path": "model"} if own else {"source": "hub", **origin}
    )
    shared = read_yaml(ROOT / CONF / "config.yaml")
    return {
        **{name: shared[name] for name in shared if name not in ("defaults", "derived")},
        "study": asked.study,
        "corpus": {},
        "families": {
            f"{asked.study}-samples": {
                "name": FAMILY,
                "prefix_length": asked.prefix_length,
                "suffix_length": asked.suffix_length,
                "samples": {
                    "source": "file",
                    "path": _samples_link(asked.samples),
                    "tokenizer": asked.name if needs_tokenizer else None,
                    "skip_short": asked.skip_short,
                },
            }
        },
        "models": {
            key: {
                "name": asked.name,
                "family": FAMILY,
                "checkpoint": {**source, "billions": model.num_parameters() / 1e9},
            }
        },
        "interventions": [
            {"blocks": "each", "edit": "identity"},
            {"blocks": "quartiles", "edit": "identity"},
        ],
        **_benchmarks(asked, offered),
        "evaluation": {
            FAMILY: {"dtype": dtype, "baseline_floor": 0.9, "below_floor": "warn", "decode": "all"}
        },
        "report": {"show_text": asked.show_text, "command": command(asked)},
        "run": {**shared["run"], "threads": asked.threads, "token_budget": asked.token_budget},
    }


def prepare(asked: Asked) -> None:
    """Create the audit's folder, or its missing parts; the caller writes its params.yaml.

    The caller has taken the folder's turn, so no other audit prepares it.

    Raises:
        InputError: the package does not come from a clone; or as `require_unused`.
    """
    if missing := [name for name in LINKED if not (ROOT / name).exists()]:
        raise bad_input(str(ROOT), f"no {', '.join(missing)}", "a clone of the project", "clone it")
    require_unused(asked)
    folder = asked.folder
    # before anything else, so that the same command continues wherever it was killed
    write_text(folder / ORIGIN, _on_one_line(asked.origin))
    for name in LINKED:
        _link(folder / name, ROOT / name)
    for old in folder.glob("samples*"):
        old.unlink()
    _link(folder / _samples_link(asked.samples), asked.samples.absolute())
    if Path(asked.model).is_dir():
        _link(folder / "model", Path(asked.model).absolute())
    if asked.tasks and Path(asked.tasks).is_dir():
        _link(folder / "tasks", Path(asked.tasks).absolute())
    write_text(folder / ".dvc" / "config", DVC_CONFIG)
    for link in _shown(asked):
        link.parent.mkdir(exist_ok=True)
        _link(link, Path("..") / folder / link)


def command(asked: Asked) -> str:
    """The command line of the audit, for bash, from the folder that it was given in."""
    words = ["python", "-m", "pipeline", "audit", "--model", asked.model]
    words += ["--samples", str(asked.samples), "--name", asked.name]
    options = {
        "--prefix-length": asked.prefix_length,
        "--suffix-length": asked.suffix_length,
        "--tasks": asked.tasks,
        "--limit": asked.limit,
        "--num-fewshot": asked.num_fewshot or None,
        "--dtype": asked.dtype,
        "--threads": asked.threads,
        "--token-budget": asked.token_budget,
    }
    for flag, value in options.items():
        words += [] if value is None else [flag, str(value)]
    words += ["--skip-short"] * asked.skip_short + ["--show-text"] * asked.show_text
    return " ".join(map(_quoted, words))


def _benchmarks(asked: Asked, offered: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The sections `benchmarks` and `datasets`."""
    if asked.tasks is None:
        return {"benchmarks": None, "datasets": {}}
    how = {"num_fewshot": asked.num_fewshot, "limit": asked.limit}
    if Path(asked.tasks).is_dir():
        tasks = list(offered["tasks"])
        return {
            "benchmarks": {"folder": "tasks", "tasks": tasks, **how},
            "datasets": {},
        }
    known: dict[str, Any] = {}
    for path in sorted((ROOT / CONF / "study").glob("*.yaml")):
        for pinned in (read_yaml(path).get("datasets") or {}).values():
            known |= pinned
    tasks = [task.strip() for task in asked.tasks.split(",")]
    if unknown := [task for task in tasks if task not in known]:
        raise bad_input(
            "--tasks",
            ", ".join(map(shorten, unknown)),
            "a folder of lm-eval's YAML files, or some of " + ", ".join(sorted(known)),
            "copy the task's YAML and its data into a folder; or write a study that pins its "
            "dataset, as pipeline/conf/study/small.yaml does",
        )
    return {
        "benchmarks": {"tasks": tasks, **how},
        "datasets": {asked.study: {task: known[task] for task in tasks}},
    }


def _samples_link(samples: Path) -> str:
    """The name of the samples file in the audit's folder, in plain ASCII."""
    if is_running_text(samples):
        return "samples.txt"
    suffix = samples.suffix.lower()
    return f"samples{suffix if suffix in ('.jsonl', '.ndjson', '.json', '.csv') else '.parquet'}"


def _shown(asked: Asked) -> tuple[Path, Path]:
    """The paths of data and report, at the place of any study's results."""
    return Path("data") / asked.study, Path("reports") / asked.study


def _unclaimed(folder: Path) -> bool:
    """Whether a folder is missing, or holds only what the command makes before `ORIGIN`."""
    entries = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return not (folder.exists() and not folder.is_dir()) and all(
        name == TURN.parts[0] or name.endswith(".part") for name in entries
    )


def _on_one_line(origin: Mapping[str, str]) -> str:
    """The origin on one line, in ASCII."""
    text = ", ".join(f"{key} {value}" for key, value in origin.items())
    return os.fsencode(text).decode("utf-8", "backslashreplace").replace("\n", "\\n")


def _link(link: Path, target: Path) -> None:
    """Point a link at the target, atomically, so that the link always exists."""
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def _quoted(word: str) -> str:
    """One word of a command line, quoted for bash, with unprintable bytes escaped in ASCII."""
    if word.isprintable():
        return shlex.quote(word)
    letters = (
        chr(b) if 32 <= b < 127 and chr(b) not in "'\\" else f"\\x{b:02x}"
        for b in os.fsencode(word)
    )
    return "$'" + "".join(letters) + "'"
