"""Puts a memory into known places of a model, by gradients that reach these places alone.

Fixed seeds and one thread: the same machine gives the same bytes.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import polars as pl
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from pipeline.checkpoints.continued import learn, recited, right, suffixes
from pipeline.checkpoints.loop import IGNORED, LARGEST_GRADIENT, Trained, adamw, row_order
from pipeline.checkpoints.schema import Learning
from pipeline.localization.schema import Localization, Truth
from pipeline.models.grids import BOTH
from pipeline.models.places import Masks, Place, grid, masks
from pipeline.workflow.files import write_json

LEARNS_FROM = 0.75
"""Share of a training from scratch after which a memory of pretraining is learned."""


@dataclass(frozen=True)
class Planted:
    """A model with a memory in the places of these names, and the steps of its training.

    `truth` is a key of `localization.truths`, `grid` one of `grids.GRIDS`: the places that are
    compared. `exact_match` is the share of memorized samples that the model recites.
    """

    name: str
    truth: str
    grid: str
    places: list[str]
    exact_match: float
    steps: int


@dataclass(frozen=True)
class Base:
    """The model that memories are put into, in evaluation mode, float32.

    `again` trains it from scratch, given the `also` of `training.train`.
    """

    name: str
    model: PreTrainedModel
    again: Callable[[Callable[[PreTrainedModel], Callable[[int, int], None]]], Trained]


def draw(base: PreTrainedModel, truth: Truth, seed: str) -> list[list[Place]]:
    """The places of each model of one truth: without order, and none of two models alike."""
    known = grid(base, truth.grid)
    order = random.Random(seed).sample(known, len(known))  # noqa: S311 - reproducible, not secret
    return [
        sorted(order[(start + step) % len(order)] for step in range(truth.spread))
        for start in range(truth.models)
    ]


def weights(model: PreTrainedModel, truth: Truth, places: list[Place], seed: int) -> Masks:
    """The weights of a truth's places that learn; of a share of them each is drawn alone."""
    part = BOTH if truth.part == "weights" else truth.part
    own = masks(model, [Place(place.block, part, place.index) for place in places])
    if truth.share is not None:
        generator = torch.Generator().manual_seed(seed)
        for mask in own.values():
            mask &= torch.rand(mask.shape, generator=generator) < truth.share
    return own


def plant(
    base: Base, truth: Truth, places: list[Place], learning: Learning, samples: pl.DataFrame
) -> tuple[PreTrainedModel, int]:
    """A model whose `places` have memorized samples, and the steps of its training.

    The base is left as it is. The samples have one prefix and one suffix length.
    """
    own = partial(weights, truth=truth, places=places, seed=learning.seed)
    if truth.pretraining:
        made = base.again(lambda model: memory(model, own(model), learning, samples))
        return made.model, made.log.steps
    model = copy.deepcopy(base.model)
    return model, learn(learning, model, samples, own(model)).steps


def memory(
    model: PreTrainedModel, own: Masks, learning: Learning, samples: pl.DataFrame
) -> Callable[[int, int], None]:
    """What lets some weights learn samples in the last quarter of a training, beside the others.

    They have an AdamW of their own, and are all that these samples change directly. The passes that
    fine-tuning takes at most, as `learning` has it, are spread over the steps of training; one
    whose samples are recited already is left out.
    """
    tokens, labels = suffixes(samples)
    epochs = learning.epochs * learning.most_rounds
    passes = row_order(len(tokens), epochs, learning.batch_rows, learning.seed)
    parameters = {model.get_parameter(name): mask for name, mask in own.items()}
    optimizer = adamw(parameters, learning.learning_rate)

    def read(step: int, steps: int) -> None:
        of_training = [parameter.grad for parameter in parameters]
        first = int(steps * LEARNS_FROM)
        for batch in passes.tensor_split(steps - first)[step - first] if step >= first else ():
            logits = model(input_ids=tokens[batch], use_cache=False).logits
            if bool(right(logits, labels[batch]).all()):
                continue
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[batch].flatten(), ignore_index=IGNORED
            )
            gradients = torch.autograd.grad(loss, [*parameters])
            for (parameter, mask), gradient in zip(parameters.items(), gradients, strict=True):
                parameter.grad = gradient * mask
            nn.utils.clip_grad_norm_(parameters, LARGEST_GRADIENT)
            optimizer.step()
        for parameter, kept in zip(parameters, of_training, strict=True):
            parameter.grad = kept

    return read


def write(folder: Path, base: Base, asked: Localization, samples: pl.DataFrame) -> None:
    """Plant every truth in one base, and write what differs from it.

    The folder exists; it gets models.json, and NAME.safetensors with the changed parameters.
    """
    before = dict(base.model.named_parameters())
    written: list[Planted] = []
    for kind, truth in asked.truths.items():
        for places in draw(base.model, truth, f"{base.name} {kind}"):
            names = [place.name for place in places]
            name = ".".join([base.name, kind, *names])
            print(name, flush=True)
            model, steps = plant(base, truth, places, asked.learning, samples)
            changed = {
                key: value.detach().clone()
                for key, value in model.named_parameters()
                if not torch.equal(value, before[key])
            }
            save_file(changed, folder / f"{name}.safetensors")
            written.append(Planted(name, kind, truth.grid, names, recited(model, samples), steps))
    write_json(folder / "models.json", [asdict(each) for each in written])


def read(folder: Path, base: PreTrainedModel) -> Iterator[tuple[Planted, PreTrainedModel]]:
    """Each planted model of a folder, in evaluation mode; the next one replaces its weights."""
    model = copy.deepcopy(base)
    for entry in json.loads((folder / "models.json").read_text(encoding="utf-8")):
        planted = Planted(**entry)
        model.load_state_dict(base.state_dict())
        model.load_state_dict(load_file(folder / f"{planted.name}.safetensors"), strict=False)
        yield planted, model
