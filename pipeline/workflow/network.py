"""Asks the hub: whether it can be reached, and what a failed request means to a user."""

import socket
import time
from collections.abc import Callable
from functools import cache
from threading import Thread
from typing import TypeVar

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pipeline.workflow.errors import InputError, Problem, run_command, shorten

CONNECT_SECONDS = 8.0
"""Time for the hub to answer, to count as reachable. A name server can take longer to give up."""

WAITS = (1, 2, 4)
"""Seconds before a request that failed for now is repeated, after huggingface_hub's own tries."""

CACHED = (
    "name a mirror in HF_ENDPOINT; or, where a cache has it all, set HF_HOME to that cache and "
    "HF_HUB_OFFLINE=1"
)
"""The remedy if the hub cannot be reached."""

_Answer = TypeVar("_Answer")


class NoNetworkError(InputError):
    """The hub cannot be reached, so no further download can succeed either."""


class CorruptError(Exception):
    """Files whose content does not match the hub's record."""


def require_network(*wanted: str) -> None:
    """Raise if the hub, with what is wanted, cannot be reached; not if it is not to be used.

    Raises:
        NoNetworkError: no connection to the hub can be made, or its name does not resolve.
    """
    if not constants.HF_HUB_OFFLINE and (reason := unreachable(constants.ENDPOINT)):
        raise NoNetworkError(no_network(reason, *wanted))


def online() -> bool:
    """Whether the hub may be used, and answers."""
    return not constants.HF_HUB_OFFLINE and unreachable(constants.ENDPOINT) is None


def no_network(reason: str, *wanted: str, remedy: str = CACHED) -> Problem:
    """The problem of a machine without a network, from the reason why no connection could be made.

    `remedy` says how to continue with local files.
    """
    return Problem(
        "to fetch " + ", ".join(wanted),
        reason,
        "a network, or all of it on this machine",
        f"mend the network; or {remedy}; or choose a study that fetches nothing: "
        + run_command("tiny"),
    )


@cache
def unreachable(url: str) -> str | None:
    """The reason why no connection to the host of a URL can be made; None if it answers at all.

    Tried once, for at most `CONNECT_SECONDS`.
    """
    answers: list[str | None] = []

    def connect() -> None:
        reason = None
        try:
            httpx2.head(url, timeout=CONNECT_SECONDS)
        except (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError):
            pass  # an answer, if a bad one
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            reason = f"no connection to {url}: {_brief(error)}"
        answers.append(reason)

    connecting = Thread(target=connect, daemon=True)  # a name server may keep it waiting for longer
    connecting.start()
    connecting.join(CONNECT_SECONDS)
    return answers[0] if answers else f"no answer of {url} in {CONNECT_SECONDS:.0f} s"


def answer(request: Callable[[], _Answer], where: str) -> _Answer:
    """The result of a request to the hub, which is repeated after a temporary failure.

    Raises:
        InputError: it failed for good.
    """
    waits = iter(WAITS)
    while True:
        try:
            return request()
        except (OSError, ValueError, httpx2.HTTPError, HfHubHTTPError, CorruptError) as error:
            # hub errors, transport errors and broken JSON; none of their texts has the token
            cause: BaseException = error
            while isinstance(cause, LocalEntryNotFoundError) and cause.__cause__ is not None:
                cause = cause.__cause__  # the library's error for any failure to ask the hub
            explained = _lasting(cause, where)
            wait = next(waits, None) if explained is None else None
            if wait is None:
                raise InputError(explained or _passing(cause, where)) from error
            print(f"{where}: {_brief(cause)}; trying again in {wait} s", flush=True)
            time.sleep(wait)


def _lasting(error: BaseException, where: str) -> Problem | None:
    """The problem of a failure that another try does not mend; None for one that may pass."""
    if _is_unresolved(error):
        return no_network(_brief(error), where)
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    gated = isinstance(error, GatedRepoError)  # which is a RepositoryNotFoundError, too
    if constants.HF_HUB_OFFLINE and isinstance(
        error, (OfflineModeIsEnabled, LocalEntryNotFoundError)
    ):
        texts = (
            "HF_HUB_OFFLINE is set, and the cache does not hold all of it",
            f"the wanted files in {constants.HF_HUB_CACHE}",
            "run once with a network, or point HF_HOME at the cache that has them",
        )
    elif not gated and isinstance(error, (RepositoryNotFoundError, RevisionNotFoundError)):
        missing = "commit" if isinstance(error, RevisionNotFoundError) else "repository"
        texts = (
            f"{constants.ENDPOINT} has no such {missing}, or shows it only with a token",
            "a repository and a commit of it that the hub has",
            "look both up on the hub; for a private repository set HF_TOKEN in the environment",
        )
    elif gated or status in (401, 403):
        texts = (
            "the hub wants a token that may read it",
            "a repository that anyone may read, or HF_TOKEN",
            "ask for access on the hub, then set HF_TOKEN in the environment",
        )
    elif isinstance(error, OSError) and error.errno is not None:
        texts = (
            _brief(error),
            f"a cache that can be written: {constants.HF_HUB_CACHE}",
            "free or mend the disk, or set HF_HOME to another",
        )
    else:
        return None
    return Problem(where, *texts)


def _passing(error: BaseException, where: str) -> Problem:
    """The problem of a failure that did not pass."""
    got, expected = _brief(error), f"an answer of the hub at {constants.ENDPOINT}"
    remedy = "check the network and HF_ENDPOINT"
    if isinstance(error, CorruptError):
        got = f"other content than the hub lists, in {1 + len(WAITS)} tries: {error}"
        expected = "the content that its checksum names"
        remedy = "look for a proxy or a mirror that changes files"
    return Problem(where, got, expected, f"{remedy}, then run again: whole files are kept")


def _is_unresolved(error: BaseException | None) -> bool:
    """Whether a name did not resolve, so that another try is useless."""
    while error is not None and not isinstance(error, socket.gaierror):
        error = error.__cause__ or error.__context__
    return error is not None


def _brief(error: BaseException) -> str:
    """An error in one line of at most 200 characters."""
    lines = str(error).strip().splitlines()
    return shorten(f"{type(error).__name__}: {lines[0] if lines else 'no more is known'}", 200)
