"""The edits, one function each: the built-in ones, and those of one's own.

An edit acts at one site of a block and replaces the values there in the rows that have it::

    QUERY, KEY, VALUE    what their projections return, before norms and rotary embeddings
    CONTEXT              the input of the output projection: the mixed values
    ATTENTION            the output of the output projection, which attention adds to the stream
    INNER                the input of the MLP's last matrix: its neurons
    MLP                  the output of the MLP's last matrix, which the MLP adds to the stream
    BLOCK                the output of the block

Limited to some heads, an edit of attention acts at `CONTEXT`, on the columns of these heads.
Limited to some neurons, an edit of the MLP acts at `INNER`, on these columns.

Shapes: n rows, T positions, D width, H heads, C = H E, input width of the output projection.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.interventions.interventions import EDITS, OWN_EDITS, Edit, EditLike, Intervention
from pipeline.models.sites import ATTENTION, BLOCK, CONTEXT, INNER, MLP, PATTERN, SITES
from pipeline.workflow.errors import InputError, bad_input, shorten
from pipeline.workflow.own import load_own, own_code

VALUES, MEAN, ENTERED, OTHER = NEEDS = ("values", "mean", "entered", "other")
"""What an edit may need beyond the values at its site; see `Here`."""


@dataclass(frozen=True)
class Here:
    """The inputs of an edit.

    Args:
        now: the values at the site, (n, T, F): F is D for attention, mlp and block, C for context.
        project: the output projection, (…, C) to (…, D).
        edit: its heads, neurons, positions and seed.
        n_heads: H.
        given: what the edit needs beyond these.
    """

    now: Tensor
    project: Callable[[Tensor], Tensor]
    edit: Edit
    n_heads: int
    given: Mapping[str, Tensor]

    @property
    def values(self) -> Tensor:
        """(n, T, C), each position's own values, one head after the other."""
        return self._given(VALUES)

    @property
    def mean(self) -> Tensor:
        """(F,), the mean of the values at the site over the calibration tokens."""
        return self._given(MEAN).to(self.now.dtype)

    @property
    def entered(self) -> Tensor:
        """(n, T, D), the block's input."""
        return self._given(ENTERED)

    @property
    def other(self) -> Tensor:
        """(n, T, F), the values at the site in the edit's source: see `patch`."""
        return self._given(OTHER)

    def _given(self, name: str) -> Tensor:
        if name not in self.given:
            remedy = "patch(source=…)" if name == OTHER else f'edit(site=…, needs=["{name}"])'
            raise bad_input(
                f"here.{name} in the edit {self.edit.name}",
                "an edit that does not say that it needs it",
                f"one of {', '.join(('now', 'project', *self.given))}",
                f"declare the function with {remedy}",
            )
        return self.given[name]


@dataclass(frozen=True, eq=False)
class Source:
    """Where the values of `Here.other` come from: a model, which reads a text without edits.

    Args:
        model: of the same shape; None: the edited model itself.
        tokens: (T,) int64, the text; None: the tokens that the edited model reads.
    """

    model: PreTrainedModel | None = field(default=None, repr=False)
    tokens: Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Rule:
    """The site of an edit, its function, and the inputs it needs beyond the values there."""

    name: str
    site: str
    apply: Callable[[Here], Tensor] = field(repr=False)
    needs: tuple[str, ...] = ()
    source: Source | None = None
    code: str = ""

    def __str__(self) -> str:
        return self.name

    def __call__(self, here: Here) -> Tensor:
        """The values that the edit puts in the place of `here.now`."""
        return self.apply(here)


def edit(
    site: str, needs: Collection[str] = (), name: str | None = None
) -> Callable[[Callable[[Here], Tensor]], Rule]:
    """Make an edit of a function, which is given a `Here` and returns new values for `here.now`.

    Args:
        site: ``attention``, ``context``, ``mlp``, ``block``, ``query``, ``key`` or ``value``.
        needs: what the function reads beyond `here.now`: ``values``, ``mean``, ``entered``.
        name: of the edit, in names of interventions; that of the function unless given.

    Raises:
        InputError: an unknown site or need.
    """
    if site not in SITES or site == PATTERN:
        got = "weights that the kernels of attention compute and never return" * (site == PATTERN)
        places = (each for each in SITES if each not in (INNER, PATTERN))
        raise bad_input(
            "the site of an edit",
            got or shorten(site),
            ", ".join(places),
            "edit the queries or keys, or the context that the weights make of the values",
        )
    if odd := set(needs) - {*NEEDS}:
        raise bad_input(
            f"needs of an edit at {site}", ", ".join(sorted(odd)), ", ".join(NEEDS), "name these"
        )

    def made(function: Callable[[Here], Tensor]) -> Rule:
        source = Source() if OTHER in needs else None
        known = getattr(function, "__name__", type(function).__name__)
        return Rule(name or str(known), site, function, tuple(needs), source)

    return made


def patch(
    source: Literal["baseline"] | PreTrainedModel | Tensor | None = None,
    site: str = ATTENTION,
    name: str = "patch",
) -> Rule:
    """The edit that puts in the values of a source at the site.

    Args:
        source: ``baseline``, the unmodified model on the same tokens; another model of the same
            shape on the same tokens; or another sample, (T,) int64 token ids, of which position t
            gives the values at position t. In a study, the line names a model, in ``source``.
        site: as for `edit`.
        name: of the edit.
    """

    def other(here: Here) -> Tensor:
        return here.other

    tokens = source if isinstance(source, Tensor) else None
    model = source if isinstance(source, PreTrainedModel) else None
    of_a_row = tokens is not None and tokens.ndim == 1 and not tokens.is_floating_point()
    if not (of_a_row or model or (tokens is None and source in (None, "baseline"))):
        raise bad_input(
            "the source of a patch",
            shorten(source) if tokens is None else f"a tensor {(*tokens.shape,)} of {tokens.dtype}",
            "`baseline`, a model, or token ids (T,) of one other sample",
            "pass one of these",
        )
    rule = edit(site, [OTHER], name)(other)
    return replace(rule, source=Source(model, tokens))


# --------------------------------------------------------------------------- built-in


@edit(CONTEXT, [VALUES])
def identity(here: Here) -> Tensor:
    """Every position attends only to itself: the output projection receives its own value.

    Source: arXiv 2501.05078, section 3.2.
    """
    return here.values


@edit(ATTENTION)
def zero(here: Here) -> Tensor:
    """Nothing is added to the stream, not even a bias."""
    return torch.zeros_like(here.now)


@edit(ATTENTION, [MEAN])
def mean(here: Here) -> Tensor:
    """Instead of its output, the part adds its mean over calibration tokens under the baseline."""
    return here.mean.expand_as(here.now)


@edit(BLOCK, [ENTERED])
def skip(here: Here) -> Tensor:
    """The block returns its input.

    Source: ShortGPT, arXiv 2403.03853; LLM-Drop, arXiv 2406.15786.
    """
    return here.entered


@edit(ATTENTION, [VALUES])
def noise(here: Here) -> Tensor:
    """The change that the identity would make, in a random direction and with the same norm.

    The direction comes from permuting the dimensions and flipping signs, by the edit's seed. It is
    the same for every position and sample, so a result does not depend on the batch.
    """
    change = here.project(here.values) - here.now
    generator = torch.Generator().manual_seed(here.edit.seed or 0)
    order = torch.randperm(change.shape[-1], generator=generator).to(change.device)
    signs = 2 * torch.randint(2, order.shape, generator=generator).to(change) - 1
    return here.now + change[..., order] * signs


RULES: Mapping[str, Rule] = {
    **{rule.name: rule for rule in (identity, zero, mean, skip, noise)},
    "heads": replace(identity, name="heads"),  # the identity, only in the edit's heads
    "mlp-zero": replace(zero, name="mlp-zero", site=MLP),
    "mlp-mean": replace(mean, name="mlp-mean", site=MLP),
}
"""Edit -> its rule."""


# --------------------------------------------------------------------------- of one's own


def rule_of(edit: EditLike) -> Rule:
    """The rule of an edit.

    Raises:
        InputError: as for `_loaded`.
    """
    if isinstance(edit, Rule):
        return edit
    return RULES.get(str(edit)) or _loaded(str(edit), own_code(OWN_EDITS))


def rules_of(interventions: Iterable[Intervention]) -> list[Rule]:
    """The rule of every edit of some interventions."""
    return [rule_of(edit) for one in interventions for edit in one.edits.values()]


def site_of(edit: Edit) -> str:
    """The site at which an edit acts, within what it is limited to."""
    site = rule_of(edit.name).site
    if edit.heads and site == ATTENTION:
        return CONTEXT
    return INNER if edit.neurons and site == MLP else site


def with_source(intervention: Intervention, source: Source) -> Intervention:
    """The intervention, whose patches put in the values of `source`, which is read once for all.

    Raises:
        InputError: one of its edits reads no other values.
    """
    edits = {}
    for block, edit in intervention.edits.items():
        if (rule := rule_of(edit)).source is None:
            raise bad_input(
                f"intervention {intervention.name}, source: {intervention.source}",
                f"the edit {rule.name}, which does not read here.other",
                "an edit made by patch(), or by edit(site=…, needs=['other'])",
                "leave out `source`, or read here.other in the function",
            )
        edits[block] = replace(rule, source=source)
    return replace(intervention, edits=edits)


@cache
def _loaded(edit: str, code: str) -> Rule:
    """The edit ``edits/FILE.py:FUNCTION``, whose file is executed, again where its `code` changes.

    Raises:
        InputError: no such file within the folder, a file that fails, or no edit of that name.
    """

    def refusal(got: str) -> InputError:
        return bad_input(
            f"the edit {edit}",
            got,
            f"one of {', '.join(EDITS)}; or a function in {OWN_EDITS}/, marked @edit(site=…)",
            "correct the line, or the file; docs/python.md describes edits of one's own",
        )

    made = load_own(edit, OWN_EDITS, refusal)
    if not isinstance(made, Rule):
        raise refusal(f"a {type(made).__name__} in {edit.partition(':')[0]}")
    return replace(made, name=edit, code=code)
