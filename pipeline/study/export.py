"""Exports a checkpoint with an edit in its weights, and a model card.

Any engine loads the export without this package. It is written only after stock transformers has
read it back and its logits match those of the edited model.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import polars as pl
import torch
from huggingface_hub import ModelCard, ModelCardData
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from pipeline.analysis import views
from pipeline.checkpoints.fit import skeleton
from pipeline.checkpoints.folder import checkpoint_files
from pipeline.checkpoints.hub import fetch_files
from pipeline.checkpoints.loading import model_of
from pipeline.checkpoints.verified import verified
from pipeline.interventions.editing import bypassed
from pipeline.interventions.exporting import (
    EXPORTABLE,
    TOLERANCE,
    distance,
    logits,
    require_blocks,
    tokens_to_compare,
    write_edit,
)
from pipeline.interventions.interventions import BASELINE, EDITS, Intervention
from pipeline.report.numbers import estimate, summarized
from pipeline.report.texts import are_given
from pipeline.samples.schemas import read_samples
from pipeline.study.audit import origin_of
from pipeline.study.composition import load
from pipeline.study.project import DISTRIBUTION
from pipeline.workflow.errors import InputError, Problem, bad_input, shorten
from pipeline.workflow.files import PARAMS, atomic, sha256
from pipeline.workflow.hub import Snapshot, listing, select, snapshot

CARD = "README.md"
OURS = ("config.json", "generation_config.json", "manifest.json", "training.json")
"""Small files of a checkpoint that do not belong to its tokenizer."""

MEANING = {
    "zero": "attention adds nothing: its output projection is zero",
    "mlp-zero": "the MLP adds nothing: its last matrix is zero",
    "skip": "the blocks are left out",
    "identity": "every token attends only to itself: queries and keys are constant biases whose "
    "scores are largest, by far, at distance 0",
}

IN_WORDS = {
    "exact_match": "recited: the greedy continuation is the whole suffix",
    "token_accuracy": "suffix tokens that the greedy continuation has in their place",
    "teacher_forced_accuracy": "suffix tokens predicted right after the true ones",
    "completion_entropy": "uncertainty about the suffix (completion entropy), nats",
}
"""The metrics of memorization that a card shows."""

LICENCE = ("license", "license_name", "license_link")


@dataclass(frozen=True)
class Source:
    """The source checkpoint of an export.

    It has the name of the command line, its files, an origin for readers, its own card if there is
    one, and the repository if it comes from the hub.
    """

    name: str
    files: Snapshot
    origin: str
    card: Path | None = None
    repo: str | None = None


def export(name: str, edit: str, blocks: str, to: Path, **told: str) -> float:
    """Write the checkpoint and its card, atomically.

    The model is a folder, one of the study in force, or OWNER/NAME@COMMIT of the hub; the edit one
    of `EXPORTABLE`, in blocks whose numbers (0-based) are separated by commas. `told` are the
    card's `base_model` and `license`, in place of what the source has.

    Returns:
        The largest difference of logits from the edited model, see `exporting.distance`.

    Raises:
        InputError: invalid options; a model or edit that cannot be exported (names the edits that
            can); or logits that differ by more than `TOLERANCE`. Nothing is written then.
    """
    numbers = require_sound(edit, blocks, to)
    source = source_of(name)
    layers = skeleton(source.files, name).config.get_text_config()
    require_blocks(edit, numbers, layers.num_hidden_layers, name)

    model = model_of(source.files, "auto")
    write_edit(model, edit, numbers)
    with atomic(to, directory=True) as folder:
        model.save_pretrained(folder)
        for weights in folder.glob("*.safetensors"):  # written for the owner alone
            shutil.copymode(folder / "config.json", weights)
        stored = model.dtype
        del model
        for file in source.files.files:
            if file not in OURS and not file.endswith((".safetensors", ".index.json")):
                shutil.copy(source.files.folder / file, folder / file)
        for dtype in dict.fromkeys((stored, torch.float32)):
            tokens, expected, before = _expected(source.files, edit, numbers, dtype)
            differ = distance(logits(_stock(folder, dtype), tokens), expected)
            changed = distance(before, expected)
            most = max(TOLERANCE, 4 * torch.finfo(dtype).eps if dtype == stored else 0)
            if not differ <= most:
                others = [each for each in EXPORTABLE if each not in ("identity", edit)]
                raise bad_input(
                    f"the edit {edit} of blocks {blocks} as weights",
                    f"logits that differ by {differ:.1e} from the edited model's, in {dtype}",
                    f"at most {most:.0e}: blocks whose scores have no cap, clip, or bias by "
                    "distance, and use rotary embeddings",
                    "nothing was written; export other blocks or another edit "
                    f"({', '.join(others)}), or use the edit without an export",
                )
        card = _card(source, edit, numbers, differ, changed, tokens.numel(), to.name, told)
        (folder / CARD).write_text(card, encoding="utf-8")
    head = _head_of(to / CARD)
    if lacks := [key for key in ("base_model", "license") if head.get(key) in (None, "unknown")]:
        print(
            f"{to / CARD} does not name {' and '.join(lacks)}: write this into its head before an "
            "upload, or export with --base-model and --license"
        )
    return differ


def require_sound(edit: str, blocks: str, to: Path) -> list[int]:
    """The blocks, ascending, after edit, blocks and folder are checked.

    Raises:
        InputError: all problems at once.
    """
    problems = []
    if edit not in EXPORTABLE:
        known = edit in EDITS
        problems.append(
            Problem(
                "--edit",
                edit if known else shorten(edit),
                f"one of {', '.join(EXPORTABLE)}",
                "evaluate this edit in a study: weights cannot express it" if known else "name one",
            )
        )
    words = [word.strip() for word in blocks.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        problems.append(
            Problem("--blocks", shorten(blocks), "numbers such as 3,5", "count blocks from 0")
        )
    problems += in_use(to)
    if problems:
        raise InputError(*problems)
    return sorted({int(word) for word in words})


def in_use(to: Path) -> list[Problem]:
    """The problem with a folder that is to be created: it exists; else none."""
    if not (to.exists() or to.is_symlink()):
        return []
    remedy = "name another folder, or delete this one"
    got = "an existing folder or file"
    return [Problem(f"--to {to}", got, "a name that is not in use", remedy)]


def source_of(model: str) -> Source:
    """The checkpoint that a command names: a folder, a model of the study, or one of the hub."""
    if not Path(model).is_dir() and "@" not in model and PARAMS.is_file():
        study = load()
        if any(entry.name == model for entry in study.models.values()):
            files = verified(study.checkpoint(model))
            return Source(model, files, f"the model `{model}` of the study `{study.study}`")
    pin = origin_of(model, also="the name of a model of the study in force, ")
    if "folder" in pin:
        files, own = checkpoint_files(Path(model)), Path(model) / CARD
        sums = ", ".join(
            f"`{name}` sha256 `{sha256(files.folder / name)}`" for name in files.weights
        )
        return Source(model, files, f"a folder with {sums}", own if own.is_file() else None)
    repo, commit = pin["repo"], pin["commit"]
    files = fetch_files(repo, commit)
    has_card = select(listing(repo, commit), (CARD,))
    card = snapshot(repo, commit, (CARD,)).folder / CARD if has_card else None
    return Source(model, files, f"`{repo}` at `{commit}`", card, repo=repo)


def _expected(
    files: Snapshot, edit: str, blocks: Sequence[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and the source's logits with and without the edit, in a precision."""
    model = model_of(files, dtype)
    tokens = tokens_to_compare(model)
    with bypassed(model, Intervention(edit, dict.fromkeys(blocks, edit))):
        expected = logits(model, tokens)
    with bypassed(model, BASELINE):
        return tokens, expected, logits(model, tokens)


def _stock(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The written checkpoint, as stock transformers loads it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, trust_remote_code=False
    )
    return model.eval()  # type: ignore[no-any-return, no-untyped-call]


# --------------------------------------------------------------------------- the card


def _card(
    source: Source,
    edit: str,
    blocks: Sequence[int],
    differ: float,
    changed: float,
    tokens: int,
    folder: str,
    told: Mapping[str, str],
) -> str:
    """The model card, Markdown with a head for the hub."""
    own, known = _head_of(source.card), _same_weights(source.files)
    origins = [manifest["origin"] for _, manifest in known]
    repos = [source.repo, *(origin.get("repo") for origin in origins), own.get("base_model")]
    licence = {key: own[key] for key in LICENCE if isinstance(own.get(key), str)}
    head = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["bypass-memorization"],
        **{"base_model": next(filter(None, repos), None), "license": "unknown", **licence, **told},
    )
    listed = f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}"
    project = [
        f"{each.version}; {'; '.join(each.metadata.get_all('Project-URL', []))}".strip("; ")
        for each in distributions(name=DISTRIBUTION)
    ]
    named = licence.get("license", "not stated in the source's card; ask its authors")
    measured = "\n\n".join(filter(None, (_measured(*each, edit, blocks) for each in known)))
    if not measured:
        done = "studies have this model, but not this edit of these blocks" if known else ""
        measured = f"Nothing: {done or 'no study or audit here has this model'}."
    return f"""---
{head.to_yaml()}
---
# {Path(source.name.partition("@")[0]).name}, `{edit}` in {listed}

The edit `{edit}` is in the weights: {MEANING[edit]}. Blocks count from 0 in the source.
Stock transformers loads this checkpoint. No code of its own is needed.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

name = "{folder}"  # this folder, or OWNER/NAME after an upload
model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
```

- **Source**: {source.origin}
- **Licence of the source**: {named}
- **Edit**: `{edit}` in {listed}
- **Made with**: `python -m pipeline export` of {" ".join([DISTRIBUTION, *project[:1]])}

## Verified

On {tokens} random tokens in float32, the logits differ by at most {differ:.2g} of the largest logit
from those of the source with the same edit made by hooks, and by {changed:.2g} of it from those of
the source itself. Where no logit is above 1, these are differences as they are.

## Measured

{measured}
"""


def _same_weights(files: Snapshot) -> list[tuple[Path, dict[str, Any]]]:
    """The data folder and the manifest of each study or audit here with the same weights."""
    paths = sorted(Path("data").glob("*/checkpoints/*/manifest.json"))
    read = [(path.parents[2], json.loads(path.read_text("utf-8"))) for path in paths]
    sums = {files.files[name] or sha256(files.folder / name) for name in files.weights if read}
    return [
        (data, manifest)
        for data, manifest in read
        if {manifest["files"][name] for name in Snapshot(data, manifest["files"]).weights} == sums
    ]


def _measured(data: Path, manifest: dict[str, Any], edit: str, blocks: Sequence[int]) -> str:
    """The results of a study before and after the edit, in words and as a table; empty: none."""
    if not (path := data / "summary.parquet").is_file():
        return ""
    summary = pl.read_parquet(path).filter(model=manifest["name"])
    memory = pl.col("metric").is_in(list(IN_WORDS)) & (pl.col("task") == views.MEMORIZATION)
    shown = pl.concat([summary.filter(memory), views.benchmarks(summary)])
    of_edit = (pl.col("edit") == edit) & (
        pl.col("blocks").cast(pl.List(pl.Int64)) == pl.lit(list(blocks), pl.List(pl.Int64))
    )
    by = ["split", "task", "metric"]
    after = shown.filter(of_edit).unique(by, maintain_order=True)
    rows = views.baseline(shown).join(after.select(*by, "intervention"), on=by, nulls_equal=True)
    if rows.is_empty():
        return ""
    given = are_given(data, [manifest["family"]])
    sample = read_samples(data, manifest["family"]).row(0, named=True)
    lines = [
        f"The study `{data.name}` measured this, before and after the edit, with 95% intervals. Of "
        f"a text the model reads {sample['prefix_length']} tokens (the prefix); it is to continue "
        f"with the {sample['suffix_length']} that follow (the suffix).",
        "",
        "| what | of | before | after |",
        "|---|---|---|---|",
    ]
    for before in rows.iter_rows(named=True):
        same = {key: before[key] for key in by if before[key] is not None}
        edited = after.filter(**same).row(0, named=True)
        words, of = f"{before['task']}, {before['metric']}", f"{before['n']} documents"
        if before["task"] == views.MEMORIZATION:
            words = IN_WORDS[before["metric"]]
            of = f"{before['n']} {'' if given else before['split'] + ' '}texts"
        values = (estimate(summarized(row)) for row in (before, edited))
        lines.append(f"| {words} | {of} | {' | '.join(values)} |")
    return "\n".join(lines)


def _head_of(card: Path | None) -> dict[str, Any]:
    """The head of a model card; empty without any."""
    if card is None:
        return {}
    try:
        text = card.read_text("utf-8", "replace")
        return dict(ModelCard(text).data.to_dict())  # type: ignore[no-untyped-call]
    except Exception:  # what is no head: YAML's many errors, and ValueError
        return {}
