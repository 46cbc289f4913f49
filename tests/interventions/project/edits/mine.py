"""Fifteen edits, as a user writes them after docs/python.md."""

import torch

from pipeline.interventions import edit, patch


def direction(width):
    """A unit vector, the same in every call."""
    vector = torch.linspace(-1, 1, width)
    return vector / vector.norm()


@edit(site="attention")
def halve(here):
    return 0.5 * here.now


@edit(site="block")
def rotate(here):
    first, second = here.now.chunk(2, -1)
    return torch.cat([0.8 * first - 0.6 * second, 0.6 * first + 0.8 * second], -1)


from_other = patch(site="attention")


@edit(site="block")
def steer(here):
    return here.now + 2 * direction(here.now.shape[-1])


@edit(site="mlp")
def negate(here):
    return here.now.neg_()  # in place, as an edit may do


@edit(site="mlp", needs=["mean"])
def towards_the_mean(here):
    return 0.5 * (here.now + here.mean)


@edit(site="context", needs=["values"])
def half_identity(here):
    return 0.5 * (here.now + here.values)


@edit(site="block", needs=["entered"])
def half_skip(here):
    return 0.5 * (here.now + here.entered)


@edit(site="mlp")
def squash(here):
    return here.now.tanh()


@edit(site="value")
def scale_values(here):
    return 2 * here.now


@edit(site="query")
def sharpen(here):
    return 3 * here.now


@edit(site="key")
def uniform(here):
    return torch.zeros_like(here.now)


@edit(site="context")
def permute(here):
    return here.now.roll(3, -1)


@edit(site="block")
def project_out(here):
    unit = direction(here.now.shape[-1])
    return here.now - (here.now @ unit)[..., None] * unit


@edit(site="attention", needs=["values"])
def between(here):
    return 0.5 * (here.now + here.project(here.values))
