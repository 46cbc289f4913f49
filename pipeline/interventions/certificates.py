"""Certificates: what an edit was shown to do on a model, before its first use there.

Every edit is tried on a few random tokens. The engine, with several interventions in one batch, is
compared with a plain loop: one forward of the stock model with one hook that calls the function. An
edit that fails is refused with what failed.

Shapes: B rows, T positions, D width, F numbers at a site.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache

from pipeline.interventions.edits import ENTERED, MEAN, OTHER, VALUES, Here, rule_of, site_of
from pipeline.interventions.hooks import attach
from pipeline.interventions.interventions import (
    BASELINE,
    LAST_TOKEN,
    PREFIX,
    Edit,
    Intervention,
    is_own,
)
from pipeline.interventions.sources import others_of, recording
from pipeline.interventions.wavefront import Engine, run
from pipeline.models.modules import attached, states_in
from pipeline.models.precision import at_least_single
from pipeline.models.sites import BLOCK, Anatomy, anatomy, leaves, padded_call, random_tokens
from pipeline.workflow.errors import InputError, bad_input

CHECKS = {
    "effect": "values that differ from those before the edit",
    "place": "the unmodified states before the edited block, and in rows without the edit",
    "plain loop": "what a forward of the stock model with one hook gives",
    "batch": "the same states whatever rows are beside one, and in whatever order",
    "padding": "what the plain loop gives where a row is padded on the left",
    "steps": "the same states whether a text is read at once or token by token",
    "calls": "the same states from the same tokens in every call",
    "threads": "the same states with another number of threads",
    "model": "a model, its gradients and its hooks as they were before",
    "memory": "no tensor that is kept after a call",
}
"""Check -> what it expects."""

_ROWS, _START = 3, 4  # rows of random tokens, and the first position of what counts as suffix


@dataclass(frozen=True)
class Certificate:
    """The result of all `CHECKS` for one edit on one model.

    Args:
        edit: its name.
        scope: what it was limited to: ``heads``, ``neurons``, positions; empty: nothing.
        blocks: those in which it was tried.
        change: the largest change of a value at the site; 0: the edit changes nothing here, which
            only a built-in edit may.
        difference: the largest difference from the plain loop, relative to the largest state.
    """

    edit: str
    scope: str
    blocks: tuple[int, ...]
    change: float
    difference: float


_Key = tuple[object, ...]
_Wanted = dict[_Key, tuple[Edit, list[tuple[int, Intervention]]]]
_HELD: WeakKeyDictionary[nn.Module, tuple[object, dict[_Key, Certificate]]] = WeakKeyDictionary()
"""Model -> the sites it was tried with, and the certificates of its edits."""


def certificates(model: nn.Module) -> list[Certificate]:
    """The certificates that the edits used on a model have so far."""
    return [*_HELD[model][1].values()] if model in _HELD else []


def certify(engine: Engine) -> None:
    """Try the edits of an engine that have no certificate for its model yet.

    The built-in edits are tried together, those of one's own one by one.

    Raises:
        InputError: an edit failed; says which check, and what was expected.
    """
    known = engine.known
    sites, held = _HELD.get(known.model, (None, {}))
    if sites is not known.sites:
        held = {}
    built_in: _Wanted = {}
    own: dict[_Key, _Wanted] = {}
    for one in engine.interventions:
        for block, edit in one.placed:
            if (key := _key(edit)) not in held:
                wanted = own.setdefault(key, {}) if is_own(edit.name) else built_in
                wanted.setdefault(key, (edit, []))[1].append((block, one))
    with torch.inference_mode(), at_least_single(known.model):
        for wanted in filter(None, (built_in, *own.values())):
            held |= _tried(engine, wanted)
    _HELD[known.model] = known.sites, held


def _key(edit: Edit) -> _Key:
    rule = rule_of(edit.name)
    source = rule.source and (rule.source.model is None, rule.source.tokens is None)
    return (rule.name, rule.apply, rule.site, source, _scope(edit))


def _scope(edit: Edit) -> str:
    parts = ("heads" if edit.heads else "", "neurons" if edit.neurons else "", edit.positions or "")
    return " ".join(filter(None, parts))


def _tried(engine: Engine, wanted: _Wanted) -> dict[_Key, Certificate]:
    """The certificates of some edits, tried together."""
    places = {key: _places(edit, used) for key, (edit, used) in wanted.items()}
    listed = [_until(wanted[key][0], *place) for key, some in places.items() for place in some]
    trial, number = _Trial(replace(engine, interventions=[BASELINE, *listed])), count(1)
    made: dict[_Key, Certificate] = {}
    for key, (edit, _) in wanted.items():
        blocks = tuple(block for block, _ in places[key])
        results = [trial.of(next(number), edit, block) for block in blocks]
        change, difference = map(max, zip(*results, strict=True))
        if is_own(edit.name) and change == 0:
            raise _refusal(engine.known, edit, blocks, "effect", "no value changes")
        made[key] = Certificate(str(edit.name), _scope(edit), blocks, change, difference)
    return made


def _places(edit: Edit, used: list[tuple[int, Intervention]]) -> list[tuple[int, Intervention]]:
    """Where to try an edit: one's own where it is first and last used, a built-in one once."""
    if _is_of_baseline(edit):  # which changes nothing unless an earlier block is edited
        used = [(block, one) for block, one in used if block > min(one.blocks)] or used
    used = sorted(used, key=lambda place: place[0])
    return [used[0], used[-1]][: len(used)] if is_own(edit.name) else used[-1:]


def _is_of_baseline(edit: Edit) -> bool:
    source = rule_of(edit.name).source
    return source is not None and source.model is None and source.tokens is None


def _until(edit: Edit, block: int, one: Intervention) -> Intervention:
    """The edit of a block alone; with those of earlier blocks if it puts in the baseline."""
    if _is_of_baseline(edit):
        return replace(one, edits={b: each for b, each in one.edits.items() if b <= block})
    return replace(
        one, edits={block: edit.name}, heads=edit.heads, neurons=edit.neurons, seed=edit.seed or 0
    )


class _Trial:
    """The states of an engine of the baseline and some edits, and the checks that compare them."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.known = engine, engine.known
        model = self.known.model
        self.tokens = random_tokens(model, _ROWS)
        self.padded = padded_call(self.known.body, self.tokens)
        self.before = self._model()
        self.stock = self._stock()
        self.whole = self._engine(self.tokens)
        self.again = self._engine(self.tokens)
        self.turned = self._engine(self.tokens[1:].flip(0)).flip(1)
        self.masked = self._engine(self.tokens, self.padded["attention_mask"])
        threads = torch.get_num_threads()
        torch.set_num_threads(2 if threads == 1 else 1)
        try:
            self.threaded = self._engine(self.tokens)
        finally:
            torch.set_num_threads(threads)

    def of(self, number: int, edit: Edit, block: int) -> tuple[float, float]:
        """Check one edit, the last of an intervention.

        Returns:
            The largest change at the site, and the largest relative difference from the plain loop.
        """
        ours, one = self.whole[number], self.engine.interventions[number]
        before = [_Plain(self.engine, each, b) for b, each in one.placed[:-1]]
        plain = _Plain(self.engine, edit, block, before)
        expected = plain.read(self.tokens)
        change = plain.change
        self._require_unchanged(plain)
        scale = max(float(x.abs().nan_to_num(0, 0, 0).amax()) for x in (self.stock[-1], expected))
        most = scale * torch.finfo(expected.dtype).eps ** 0.5

        def require(check: str, one: Tensor, other: Tensor) -> None:
            apart = float((one - other).abs().amax())
            if other.isfinite().all() and not apart <= most:
                got = f"states that differ by {apart:.3g} of {scale:.3g}"
                raise plain.refusal(check, got)

        if not all(torch.equal(*pair) for pair in zip(plain.states, self.stock, strict=False)):
            raise plain.refusal("place", f"other states before block {block}")
        if is_own(edit.name):
            require("calls", plain.read(self.tokens), expected)
        require("steps", plain.steps(self.tokens), expected)
        require("calls", self.again[number], ours)
        require("batch", self.turned[number], ours[1:])
        require("plain loop", ours, expected)
        require("threads", self.threaded[number], ours)
        padded = plain.read(self.tokens, self.padded)
        require("padding", self.masked[number][:, 1:], padded[:, 1:])
        require("place", self.whole[0], self.stock[-1])
        if is_own(edit.name):
            self._watch(plain)
        return change, float((ours - expected).abs().amax()) / max(scale, 1e-30)

    def _watch(self, plain: _Plain) -> None:
        """Raise if a function keeps a tensor, changes the gradient mode, or changes the model."""
        plain.made.clear()
        with torch.set_grad_enabled(True):
            plain.read(self.tokens)
            if not torch.is_grad_enabled():
                raise plain.refusal("model", "gradients that are off")
        self._require_unchanged(plain)
        if kept := sum(each() is not None for each in plain.made):
            raise plain.refusal("memory", f"{kept} tensors that are kept")

    def _engine(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(V, B, T, D), by the engine."""
        return run(self.engine, tokens, mask=mask, start=_START)[self.engine.ends]

    def _stock(self) -> list[Tensor]:
        """The states after each block (B, T, D) of the unmodified model, then the head's input."""
        with _states(self.known) as states:
            states.append(self.known.body(input_ids=self.tokens, use_cache=False)[0])
        return states

    def _model(self) -> object:
        model = self.known.model
        return (
            torch.is_grad_enabled(),
            model.training,
            anatomy(model).sites is self.known.sites,
            [weight.requires_grad for weight in model.parameters()],
        )

    def _require_unchanged(self, plain: _Plain) -> None:
        if self._model() != self.before or not torch.equal(self._stock()[-1], self.stock[-1]):
            raise plain.refusal("model", "a model that has changed")


class _Plain:
    """One forward of the stock model with one hook that calls an edit's function.

    Edits of earlier blocks may be made with it.
    """

    def __init__(
        self, engine: Engine, edit: Edit, block: int, earlier: Sequence[_Plain] = ()
    ) -> None:
        self.all = (*earlier, self)
        self.engine, self.known, self.edit, self.block = engine, engine.known, edit, block
        self.rule, self.where = rule_of(edit.name), site_of(edit)
        self.change = 0.0
        self.states: list[Tensor] = []
        self.others: Tensor | None = None
        self.given: dict[str, Tensor] = {}
        self.first = 0  # position of the first token of a call
        self.made: list[ref[Tensor]] = []  # the tensors that the function is given and makes

    def refusal(self, check: str, got: str) -> InputError:
        """The error for a failed check."""
        return _refusal(self.known, self.edit, (self.block,), check, got)

    def read(self, tokens: Tensor, call: Any = None) -> Tensor:
        """The head's input (B, T, D); `states` are those after the blocks before this one."""
        with self._reading(tokens, call or {}), _states(self.known) as states:
            last: Tensor = self.known.body(input_ids=tokens, use_cache=False, **(call or {}))[0]
        self.states = states[: self.all[0].block]
        return last

    def steps(self, tokens: Tensor) -> Tensor:
        """The same, the last token read on the keys and values of those before it."""
        cache, made = DynamicCache(config=self.known.model.config), []
        with self._reading(tokens, {}):
            for part in (tokens[:, :-1], tokens[:, -1:]):
                made.append(
                    self.known.body(input_ids=part, past_key_values=cache, use_cache=True)[0]
                )
                for each in self.all:
                    each.first += part.shape[1]
        return torch.cat(made, 1)

    @contextmanager
    def _reading(self, tokens: Tensor, call: Any) -> Iterator[None]:
        """All edits in force while the model reads the tokens from the first."""
        for each in self.all:
            each._look_at_sources(tokens, call)
            each.first = 0
        try:
            with attached(handle for each in self.all for handle in each._hooks()):
                yield
        finally:
            for each in self.all:
                each.given.clear()

    def _look_at_sources(self, tokens: Tensor, call: Any) -> None:
        if (source := self.rule.source) is not None:
            places = {source: (self.engine.sources[source], {(self.block, self.where)})}
            found = others_of(places, tokens, call, None)
            self.others = found[source, self.block, self.where].expand(len(tokens), -1, -1)

    def _hooks(self) -> Iterator[RemovableHandle]:
        site = self.known.sites[self.block]
        tap = site.tap(self.where)
        assert tap is not None  # noqa: S101  `require_editable` has refused it

        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            self.given[ENTERED] = states_in(args, kwargs).clone()

        def project(_module: nn.Module, _args: Any, returned: Tensor) -> None:
            shape = self.given[ENTERED].shape[:2]
            self.given[VALUES] = site.values.pick(returned.reshape(*shape, -1))

        yield site.block.register_forward_pre_hook(enter, with_kwargs=True)
        yield site.source.register_forward_hook(project)
        yield attach(tap, partial(self._changed, tap.columns))

    def _changed(self, columns: Tensor | slice, passing: Tensor) -> Tensor:
        site, edit = self.known.sites[self.block], self.edit
        rows, length = self.given[ENTERED].shape[:2]
        whole = passing.clone().reshape(rows, length, -1)
        now = whole[..., columns].clone()
        given = {need: self.given[need] for need in (VALUES, ENTERED) if need in self.rule.needs}
        if MEAN in self.rule.needs:
            given[MEAN] = self.engine.means[self.block, self.where]
        if self.others is not None:
            given[OTHER] = self.others[:, self.first : self.first + length].to(now)
        here = Here(now.clone(), site.project, edit, site.values.heads, given)
        self.made.append(ref(here.now))
        with _Watching(self.made):
            made = self.rule(here)
        del here
        kept, size = now.clone(), site.values.size if edit.heads else 1
        parts = [slice(n * size, (n + 1) * size) for n in edit.heads or edit.neurons or ()]
        at = [t for t in range(length) if _inside(edit, self.first + t)]
        for part in parts or [slice(None)]:
            kept[:, at, part] = made[:, at, part].to(now)
        self.change = max(self.change, float((kept - now).abs().nan_to_num(1, 1, 1).amax()))
        whole[..., columns] = kept
        return whole.reshape(passing.shape)


def _inside(edit: Edit, position: int) -> bool:
    """Whether an edit acts at a position of the trial's tokens."""
    if edit.positions is None:
        return True
    within = {PREFIX: position < _START, LAST_TOKEN: position == _START - 1}
    return within.get(edit.positions, position >= _START)


@contextmanager
def _states(known: Anatomy) -> Iterator[list[Tensor]]:
    """A list that receives the states after each block."""
    states: list[Tensor] = []
    blocks = [(block, BLOCK) for block in range(len(known.sites))]
    with recording(known, blocks, lambda _, after: states.append(after.clone())):
        yield states


class _Watching(TorchFunctionMode):
    """Notes every tensor that is made while the context lasts, without keeping it alive."""

    def __init__(self, made: list[ref[Tensor]]) -> None:
        super().__init__()
        self.made = made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and note what it returns."""
        returned = func(*args, **(kwargs or {}))
        self.made += [ref(x) for _, x in leaves(returned)]
        return returned


def _refusal(known: Anatomy, edit: Edit, blocks: Sequence[int], check: str, got: str) -> InputError:
    limits = f", limited to {_scope(edit)}" if _scope(edit) else ""
    where = ", ".join(map(str, blocks))
    return bad_input(
        f"the edit {edit.name} of block {where}{limits}, tried on random tokens on "
        f"{type(known.model).__name__}: {check}",
        got,
        CHECKS[check],
        "correct the function: each row and position alone, from `here` alone"
        if is_own(edit.name)
        else "evaluate another model, or report this architecture",
    )
