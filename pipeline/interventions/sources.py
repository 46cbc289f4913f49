"""The sources of patches: models that read a text without edits, whose values are recorded.

A source reads what the rows of a pass read, before them: the samples in the teacher-forced pass,
and in decoding each row's own tokens, on keys and values of its own.

Shapes: B rows of tokens, T positions, F numbers at a site, n rows that decode.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from transformers import DynamicCache

from pipeline.interventions.caches import Kept, SideBySide
from pipeline.interventions.edits import Source
from pipeline.interventions.hooks import Others, attach
from pipeline.models.modules import attached
from pipeline.models.sites import Anatomy
from pipeline.workflow.errors import bad_input

Places = dict[Source, tuple[Anatomy, set[tuple[int, str]]]]
"""Source -> its model, and the (block, site) whose values are put in."""


@contextmanager
def recording(
    known: Anatomy, places: Iterable[tuple[int, str]], see: Callable[[tuple[int, str], Tensor], Any]
) -> Iterator[None]:
    """Show the values at some sites of a model, as they pass, while the context lasts."""

    def shown(place: tuple[int, str], columns: Tensor | slice, x: Tensor) -> Tensor:
        see(place, x[..., columns])
        return x

    def hooks() -> Iterator[Any]:
        for block, where in places:
            if (tap := known.sites[block].tap(where)) is not None:
                yield attach(tap, partial(shown, (block, where), tap.columns))

    with attached(hooks()):
        yield


def others_of(
    places: Places, tokens: Tensor, call: Mapping[str, Tensor], caches: dict[Source, Kept] | None
) -> Others:
    """The values of each source at its places, for a pass over `tokens`.

    Args:
        places: of all sources.
        tokens: (B, T) int64.
        call: further arguments of the model.
        caches: receives the keys and values of each source; None: nothing is kept.

    Raises:
        InputError: the text of a source is too short.
    """
    others: Others = {}
    for source, (known, of) in places.items():
        read = partial(_read, source, known, of)
        if source.tokens is not None:
            others |= read(_first(source.tokens, tokens.shape[1]), None)
        else:
            cache = None if caches is None else caches.setdefault(source, Kept())
            others |= read(tokens, cache, **call)
    return others


def _first(text: Tensor, length: int) -> Tensor:
    """The first tokens (1, T) of a source's own text."""
    if len(text) < length:
        raise bad_input(
            "the source of a patch",
            f"a text of {len(text)} tokens",
            f"{length} or more, one for each position that is read",
            "take a longer text",
        )
    return text[None, :length]


def _read(
    source: Source,
    known: Anatomy,
    places: set[tuple[int, str]],
    tokens: Tensor,
    cache: DynamicCache | None,
    **call: Tensor,
) -> Others:
    others: Others = {}

    def keep(place: tuple[int, str], values: Tensor) -> None:
        shaped = values.reshape(len(tokens), -1, values.shape[-1])
        others[source, *place] = shaped.clone()

    with recording(known, places, keep):
        device = known.model.device
        given = {name: x.to(device) for name, x in {"input_ids": tokens, **call}.items()}
        known.body(**given, past_key_values=cache, use_cache=cache is not None)
    return others


class Beneath:
    """The sources beneath rows that decode, one position at a time.

    Args:
        places: of all sources.
        cache: the keys and values of the teacher-forced pass, with those of the sources.
        sample: (n,) int64, the sample of each row.
        length: positions up to the last.
    """

    def __init__(self, places: Places, cache: Kept, sample: Tensor, length: int) -> None:
        self.places = places
        self.rows: dict[Source, SideBySide] = {}
        self.whole: Others = {}
        for source, (known, of) in places.items():
            if source.tokens is not None:
                self.whole |= _read(source, known, of, _first(source.tokens, length), None)
                continue
            rows = self.rows[source] = SideBySide()
            of_rows, kept = sample.to(known.model.device), cache.others[source].blocks
            for block in sorted(kept):
                rows.buffers.append([x[of_rows] for x in kept.pop(block)])

    def others(self, tokens: Tensor, position: int) -> Others:
        """The values at a position, given the tokens (n, 1) that the active rows read there."""
        at = slice(position, position + 1)
        others = {key: values[:, at] for key, values in self.whole.items()}
        for source, rows in self.rows.items():
            rows.active, rows.position = len(tokens), position
            others |= _read(source, *self.places[source], tokens, rows)
        return others
