"""Checks once whether the hub can be reached, and reports at once how to continue without it."""

from __future__ import annotations

from functools import cache
from threading import Thread
from typing import Any

import httpx2
from huggingface_hub import constants

from pipeline.workflow.errors import InputError, Problem, shorten

CONNECT_SECONDS = 8.0
"""Time for the hub to answer, to count as reachable. A name server can take longer to give up."""

CACHED = (
    "name a mirror in HF_ENDPOINT; or, where a cache has it all, set HF_HOME to that cache and "
    "HF_HUB_OFFLINE=1"
)
"""The remedy if the hub cannot be reached."""


class NoNetworkError(InputError):
    """The hub cannot be reached, so no further download can succeed either."""


def require_network(*wanted: str) -> None:
    """Raise if the hub cannot be reached; does nothing if the hub is not to be used.

    Args:
        wanted: names of what would be fetched.

    Raises:
        NoNetworkError: no connection to the hub can be made, or its name does not resolve.
    """
    if not constants.HF_HUB_OFFLINE and (why := unreachable(constants.ENDPOINT)):
        raise NoNetworkError(no_network(why, *wanted))


def no_network(why: str, *wanted: str, remedy: str = CACHED) -> Problem:
    """The problem of a machine without a network.

    Args:
        why: the reason why no connection could be made.
        wanted: names of what would be fetched.
        remedy: how to continue with local files.
    """
    return Problem(
        "to fetch " + ", ".join(wanted),
        why,
        "a network, or all of it on this machine",
        f"mend the network; or {remedy}; or choose a study that fetches nothing: "
        "make run STUDY=tiny",
    )


@cache
def unreachable(url: str) -> str | None:
    """The reason why no connection to the host of a URL can be made; None if it answers at all.

    Tried once, for at most `CONNECT_SECONDS`.
    """
    answers: list[str | None] = []

    def ask() -> None:
        try:
            httpx2.head(url, timeout=CONNECT_SECONDS)
        except (
            httpx2.ConnectError,
            httpx2.TimeoutException,
            httpx2.ProxyError,
            httpx2.UnsupportedProtocol,
            httpx2.InvalidURL,
        ) as error:
            answers.append(f"no connection to {url}: {brief(error)}")
        except httpx2.HTTPError:  # an answer, if a bad one
            answers.append(None)
        else:
            answers.append(None)

    asking = Thread(target=ask, daemon=True)  # a name server may keep it waiting for longer
    asking.start()
    asking.join(CONNECT_SECONDS)
    return answers[0] if answers else f"no answer of {url} in {CONNECT_SECONDS:.0f} s"


def brief(error: Any) -> str:
    """An error in one line of at most 200 characters."""
    lines = str(error).strip().splitlines()
    return shorten(f"{type(error).__name__}: {lines[0] if lines else 'no more is known'}", 200)
