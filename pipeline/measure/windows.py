"""Measures how surely a model knows each passage of a document: p_z of every window.

A window is a prefix of P tokens and a suffix of S; windows begin at every `stride`-th token. A loop
over windows reads each token of the document (P + S) / stride times. Read in chunks, a pass over
2P + S tokens serves all windows whose suffix begins in the chunk's second P tokens::

    chunk   ├──────── P ────────┼──────── P ────────┼─── S ───┤
    window      ├─────── P ─────────┼─── S ───┤                  at every stride
                                    ▲ its suffix has P to 2P tokens before it in the chunk

This is the reading ``rolling``; a model reads about three tokens for each of the document, at any
stride. Some windows are also read ``exact``, alone with exactly P tokens before the suffix, as
published. Both are the same code: an exact chunk holds one window.

Source: p_z along whole books in arXiv 2505.12546; recitation from a seed in 2601.02671.

Shapes: V interventions, N chunks, P prefix and S suffix tokens, T tokens of a document, K windows
of a chunk, G branches, B chunks of a batch.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.interventions.completion import complete
from pipeline.interventions.evaluation import Progress, require_rows
from pipeline.interventions.guard import prepare
from pipeline.interventions.interventions import BASELINE, Intervention
from pipeline.interventions.memory import in_batches
from pipeline.interventions.overflow import not_finite
from pipeline.interventions.wavefront import Engine, teacher_forced
from pipeline.measure.passages import recall, runs
from pipeline.measure.schemas import EXACT, RECITED, ROLLING, WINDOWS
from pipeline.measure.sharded import DEFAULT, Running, sharded
from pipeline.models.context import context_length
from pipeline.models.precision import at_least_single
from pipeline.workflow.errors import bad_input
from pipeline.workflow.tables import cast, crossed, dtypes, empty

RECITED_TOKENS = 500
"""Tokens that a model recites from a seed, at most."""

_COLUMNS = ("log_prob", "log_prob_top_40")


class Document(NamedTuple):
    """A text, and its tokens.

    Args:
        name: of its file.
        tokens: (T,) int64.
        ends: (T, 2) int64, the first character of each token, and the one behind it.
        reference: whether it is a text that the model cannot know.
    """

    name: str
    tokens: NDArray[np.int64]
    ends: NDArray[np.int64]
    reference: bool = False


def document(
    name: str, text: str, tokenizer: PreTrainedTokenizerBase, *, reference: bool = False
) -> Document:
    """A text cut into tokens, without special tokens.

    Raises:
        InputError: the tokenizer does not say which characters a token stands for.
    """
    if not tokenizer.is_fast:
        raise bad_input(
            "the tokenizer of the model",
            type(tokenizer).__name__,
            "one that says where each token lies in the text",
            "save its fast version (tokenizer.json) beside the weights",
        )
    cut = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ends = np.array(cut["offset_mapping"], np.int64).reshape(-1, 2)
    ends[1:, 0] = np.minimum(ends[1:, 0], ends[:-1, 1])  # GPT-NeoX's leaves out leading spaces
    return Document(name, np.array(cut["input_ids"], np.int64), ends, reference)


@torch.inference_mode()
def measure(
    model: PreTrainedModel,
    documents: Sequence[Document],
    prefix_length: int,
    suffix_length: int,
    interventions: Sequence[Intervention] = (BASELINE,),
    *,
    stride: int = 8,
    exact: int = 64,
    running: Running = DEFAULT,
) -> pl.DataFrame:
    """Measure every window of some documents, under every intervention.

    Args:
        model: in evaluation mode, on any device.
        documents: one or more; those shorter than P + S tokens have no window.
        prefix_length: P.
        suffix_length: S.
        interventions: V of them, distinct.
        stride: tokens from one window to the next.
        exact: the number of windows, evenly spread over all, that are read alone as well.
        running: its shards keep finished chunks.

    Returns:
        As `schemas.WINDOWS`: rolling, then exact; intervention by intervention; in the order of the
        documents.

    Raises:
        InputError: an unsupported model, windows beyond its context, tokens that it does not have,
            or NaN or infinity.
    """
    total, context = prefix_length + suffix_length, context_length(model.config)
    if total > context:
        raise bad_input(
            "the windows of a document",
            f"{total} tokens: {prefix_length} of prefix and {suffix_length} of suffix",
            f"at most {context}, the model's context",
            "lower prefix_length or suffix_length",
        )
    per_chunk = 1 + min(prefix_length, context - total) // stride
    found = []
    for number, (name, tokens, ends, reference) in enumerate(documents):
        starts = np.arange(0, len(tokens) - total + 1, stride)
        columns = {
            "start": starts,
            "context": prefix_length + np.arange(len(starts)) % per_chunk * stride,
            "first_character": ends[starts + prefix_length, 0],
            "end_character": ends[starts + total - 1, 1],
        }
        told = {"document": pl.lit(name), "number": pl.lit(number), "reference": pl.lit(reference)}
        found.append(pl.DataFrame(columns).with_columns(**told))
    windows = pl.concat(found).with_columns(
        prefix_length=prefix_length, suffix_length=suffix_length
    )
    if windows.is_empty():
        return empty(WINDOWS)
    chosen = np.unique(np.arange(exact) * len(windows) // max(1, exact))
    alone = windows[chosen].with_columns(context=prefix_length)
    length = total + (per_chunk - 1) * stride
    chunks = _rows(documents, windows.filter(context=prefix_length), length)
    require_rows(model, chunks, "the tokens of the documents")
    engine = prepare(
        model, interventions, chunks, running.journal, running.token_budget, length - 1
    )
    names = pl.DataFrame({"intervention": [one.name for one in interventions]})
    tables = []
    for reading, listed, rows, kept in (
        (ROLLING, windows, chunks, running.shards),
        (EXACT, alone, _rows(documents, alone, total), None),
    ):
        if listed.is_empty():
            continue
        lengths = prefix_length, suffix_length, stride
        work = partial(_read, engine, rows, lengths, running.progress)
        sizes = [rows.shape[1]] * len(rows)
        read = sharded(kept, model, interventions, sizes, [*lengths, *rows.tolist()], work)
        after = listed["context"].to_numpy() - prefix_length  # tokens after a chunk's first
        at = (after == 0).cumsum() - 1, after // stride
        every = crossed(names, listed.with_columns(reading=pl.lit(reading))).with_columns(
            pl.Series(name, read[name][:, *at].ravel()) for name in _COLUMNS
        )
        tables.append(cast(every, WINDOWS))
    return pl.concat(tables)


def _rows(documents: Sequence[Document], chunks: pl.DataFrame, length: int) -> Tensor:
    """(N, length) int64, the tokens of chunks; repeated behind a document's end."""
    places = chunks.select("number", "start").iter_rows()
    rows = [np.resize(documents[n].tokens[at : at + length], length) for n, at in places]
    return torch.from_numpy(np.array(rows, np.int64).reshape(-1, length))


def _read(
    engine: Engine, rows: Tensor, lengths: tuple[int, int, int], progress: Progress, numbers: range
) -> dict[str, NDArray[Any]]:
    """`_COLUMNS` -> (V, N, K) float64, of some of the chunks (…, C); NaN does not occur."""
    prefix, suffix, stride = lengths
    needed = rows.shape[1] - prefix  # tokens that belong to a suffix

    def work(part: range) -> Tensor:
        batch = rows[numbers][part].to(engine.device)
        readout = teacher_forced(engine, batch, needed)
        made = [
            getattr(readout, name).double().unfold(-1, suffix, stride).sum(-1) for name in _COLUMNS
        ]
        progress(numbers.start + part.stop, len(rows))
        return torch.stack(made).cpu()[:, engine.ends]

    costs = [engine.trie.branches * rows.shape[1]] * len(numbers)
    budget = engine.budget(rows.shape[1], caching=False)
    half = engine.known.model.dtype == torch.float16  # which overflows where float32 does not
    with at_least_single(*engine.models) if half else nullcontext():
        parts = in_batches(costs, budget, None, work, engine.journal)
    values = torch.cat(parts, 2)
    if values.isnan().any():
        _, v, n, _ = values.isnan().nonzero()[0].tolist()
        raise not_finite(engine, v, rows[numbers[n], :-1], f"chunk {numbers[n]}")
    return dict(zip(_COLUMNS, values.numpy(), strict=True))


def recite(
    model: PreTrainedModel,
    documents: Sequence[Document],
    windows: pl.DataFrame,
    interventions: Sequence[Intervention],
    tokenizer: PreTrainedTokenizerBase,
    running: Running = DEFAULT,
) -> pl.DataFrame:
    """Let the model go on greedily from a seed in each document.

    The seed is the prefix of the first window of the longest extractable run; of the likeliest
    window where none is extractable. Both are the baseline's, so that all interventions continue
    the same seed.

    Args:
        model: in evaluation mode, on any device.
        documents: those without a window, and references, are left out.
        windows: as `measure` gives them, of the baseline and others.
        interventions: V of them, the baseline among them.
        tokenizer: the model's.
        running: of which the progress and the shards are not used.

    Returns:
        As `schemas.RECITED`, a row for each intervention and document, document by document.

    Raises:
        InputError: as for `completion.complete`.
    """
    made = []
    of_baseline = windows.filter(intervention=BASELINE.name, reading=ROLLING, reference=False)
    for name, tokens, _, reference in documents:
        rows = of_baseline.filter(document=name)
        if reference or rows.is_empty():
            continue
        known, likeliest = runs(rows), rows[int(rows["log_prob"].to_numpy().argmax())]
        seed = int((likeliest if known.is_empty() else known)["start"][0])
        prefix = int(likeliest["prefix_length"][0])
        length = min(RECITED_TOKENS, context_length(model.config) - prefix)
        text = torch.from_numpy(tokens[seed : seed + prefix + length])[None]
        true = text[0, prefix:]
        completed = complete(
            model,
            text,
            len(true),
            interventions,
            token_budget=running.token_budget,
            journal=running.journal,
        )
        for one, written in zip(interventions, completed.continuation[:, 0], strict=True):
            verbatim = int((written == true).cumprod(0).sum())
            near, said = recall(written.tolist(), true.tolist()), str(tokenizer.decode(written))
            made.append((one.name, name, seed, prefix, len(true), verbatim, near, said))
    return pl.DataFrame(made, dtypes(RECITED), orient="row")
