"""Transformers of one block that learn a look-up table: many of them trained at once.

The table gives each pair of tokens (a, b) its next token. A model sees a, then b, and predicts
from b's position. Since all pairs are seen in every step, terms that depend on only one token are
computed once per token, not once per pair.

Models of unequal sizes are stacked: the smaller ones are padded with zeros. The padding never
changes: each of its products with the rest has a factor zero, hence a gradient of zero, and Adam
does not change parameters without a gradient.

Shapes: M models, N vocabulary, D width, H heads, K head width, F hidden units of the MLP, all the
largest of the stack. A pair is indexed (b, a): the position that predicts comes first.

Source: arXiv 2411.10115 and its published code, with the differences that `Shape` lists.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.theory.training import train

CONTEXT = 2
"""S, tokens that a model sees."""

PLAIN, SHARED, MLP, FROZEN = "attention-only", "shared-bottleneck", "mlp", "frozen-attention"
"""Architectures. An MLP (GELU) stands behind attention where F is above 0.

Heads have projections of their own, as in the theorems; in a shared bottleneck they all read and
write through one of width K, as in the published code, which has none where K = D: there it
restricts nothing here either. Frozen attention keeps its random weights.
"""


@dataclass(frozen=True)
class Shape:
    """One model. There is no bias in attention, as in the theorems.

    Args:
        vocabulary: N, tokens, at least 1, as the other sizes but F.
        width: D, of the residual stream.
        heads: H.
        head_width: K, of queries, keys and values.
        hidden: F, units of the MLP; 0 for none.
        architecture: one of the above; equal within a stack.
    """

    vocabulary: int
    width: int
    heads: int
    head_width: int
    hidden: int = 0
    architecture: str = PLAIN

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The name of each parameter and its size; all models of an architecture have the same."""
        shared = self.architecture == SHARED
        inner = self.head_width if shared else self.width
        sizes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, self.width),
            "position": (CONTEXT, self.width),
            "unembedding": (self.vocabulary, self.width),
            **dict.fromkeys(("query", "key", "value"), (self.heads, inner, self.head_width)),
            "output": (self.heads, self.head_width, inner),
        }
        if shared:
            sizes |= {"narrow": (self.width, inner), "widen": (inner, self.width)}
        if self.hidden:
            sizes |= {
                "enter": (self.width, self.hidden),
                "offset": (self.hidden,),
                "leave": (self.hidden, self.width),
            }
        return sizes

    @property
    def parameters(self) -> int:
        """Numbers in all of its parameters."""
        return sum(math.prod(size) for size in self.sizes.values())


class Stack:
    """Models of one architecture and vocabulary side by side, all with an MLP or all without.

    Args:
        shapes: of the M models, at least one.
        seeds: M; a model's seed determines its table and its initial weights.
    """

    def __init__(self, shapes: Sequence[Shape], seeds: Sequence[int]) -> None:
        self.parameters: dict[str, Tensor] = {}
        for name in shapes[0].sizes:
            sizes = zip(*(shape.sizes[name] for shape in shapes), strict=True)
            self.parameters[name] = torch.zeros(len(shapes), *map(max, sizes))
        for model, (shape, seed) in enumerate(zip(shapes, seeds, strict=True)):
            for name, value in initial(shape, seed).items():
                corner = tuple(slice(length) for length in value.shape)
                self.parameters[name][model][corner] = value
        self.scale = torch.tensor([shape.head_width**-0.5 for shape in shapes])
        self.answers = torch.stack([table(shapes[0].vocabulary, seed) for seed in seeds])
        frozen = ("query", "key", "value", "output") if shapes[0].architecture == FROZEN else ()
        self.trained = [value for name, value in self.parameters.items() if name not in frozen]

    def logits(self, bypass: bool = False) -> Tensor:
        """(M, N, N, N) logits of the next token, of pair (b, a).

        In a bypass attention weights are the identity: the last position sees itself alone.
        """
        weights = self.parameters
        models, vocabulary, width = weights["embedding"].shape
        first = weights["embedding"] + weights["position"][:, :1]
        last = weights["embedding"] + weights["position"][:, 1:]
        inputs = first, last
        if "narrow" in weights:
            inputs = first @ weights["narrow"], last @ weights["narrow"]
        # (M, H, N, D): what each head would write, were it to see this token alone
        from_first, from_last = (
            each[:, None] @ weights["value"] @ weights["output"] for each in inputs
        )
        written = from_last.sum(1)[:, :, None]
        if not bypass:
            query = inputs[1][:, None] @ weights["query"] * self.scale[:, None, None, None]
            key_first, key_last = (each[:, None] @ weights["key"] for each in inputs)
            own = (query * key_last).sum(-1, keepdim=True)
            # softmax over two positions; (M, H, N, N): b's weight on a
            seen = (query @ key_first.mT - own).sigmoid()
            of_first = seen.permute(0, 3, 2, 1) @ from_first.transpose(1, 2)
            of_last = seen.permute(0, 2, 3, 1) @ from_last.transpose(1, 2)
            written = written + of_first.transpose(1, 2) - of_last
        if "widen" in weights:
            written = written @ weights["widen"][:, None]
        stream = (last[:, :, None] + written).expand(-1, -1, vocabulary, -1)
        stream = stream.reshape(models, vocabulary**2, width)
        if "enter" in weights:
            hidden = torch.baddbmm(weights["offset"][:, None], stream, weights["enter"])
            stream = torch.baddbmm(stream, functional.gelu(hidden), weights["leave"])
        logits = stream @ weights["unembedding"].mT
        return logits.view(models, vocabulary, vocabulary, -1)

    def losses(self) -> Tensor:
        """(M,) cross-entropy, nats a pair."""
        logits = self.logits().flatten(0, 2)
        each = functional.cross_entropy(logits, self.answers.flatten(), reduction="none")
        return each.view(len(self.answers), -1).mean(1)

    def train(
        self, steps: int, learning_rate: float, stepped: Callable[[], object] = lambda: None
    ) -> None:
        """Fit each model to its table, all pairs in every step; see `training.train`."""
        train(self.trained, self.losses, steps, learning_rate, stepped)

    @torch.no_grad()
    def outcomes(self) -> list[dict[str, float]]:
        """What each of the M models knows of its table.

        Returns:
            ``accuracy``: share of the pairs whose next token has the largest logit, 0 to 1;
            ``bypassed_accuracy``: the same where attention weights are the identity; ``loss``.
        """
        found = {
            name: (self.logits(bypass).argmax(-1) == self.answers).double().mean((1, 2)).tolist()
            for name, bypass in (("accuracy", False), ("bypassed_accuracy", True))
        }
        found["loss"] = self.losses().tolist()
        return [
            dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)
        ]


def table(vocabulary: int, seed: int) -> Tensor:
    """The next token of each pair (b, a), uniformly random: (N, N) token ids."""
    generator = torch.Generator().manual_seed(1_000 + seed)
    return torch.randint(vocabulary, (vocabulary, vocabulary), generator=generator)


def ceiling(answers: Tensor) -> float:
    """The best accuracy of any model that sees the last token alone, 0 to 1.

    It is what remains under a bypass, at most, wherever the table is stored: the share of the
    pairs that the commonest answer of each last token gets right. `answers` are as of `table`.
    """
    vocabulary = len(answers)
    counts = functional.one_hot(answers, vocabulary).sum(1)
    return float(counts.max(-1).values.double().mean()) / vocabulary


def initial(shape: Shape, seed: int) -> dict[str, Tensor]:
    """Random weights by name: normal, of variance one over the number of terms in their sum.

    A model of the same seed and shape gets the same.
    """
    generator = torch.Generator().manual_seed(seed)
    terms = dict.fromkeys(("embedding", "position", "unembedding"), shape.width)
    terms["output"] = shape.heads * shape.head_width
    return {
        name: torch.zeros(size)
        if name == "offset"
        else torch.randn(size, generator=generator) * terms.get(name, size[-2]) ** -0.5
        for name, size in shape.sizes.items()
    }
