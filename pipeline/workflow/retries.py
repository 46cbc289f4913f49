"""Requests to the hub: temporary failures are tried again, permanent ones are explained.

A name that does not resolve, a missing repository and a rejected token are not tried again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeVar

import httpx2
import tenacity
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pipeline.workflow.errors import InputError, Problem
from pipeline.workflow.network import brief, no_network

TRIES = 7
LONGEST_WAIT = 60.0
"""Seconds; waits between tries double from about one second, with jitter: two minutes in all."""

WORTH_ANOTHER_TRY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of temporary failures."""

_Result = TypeVar("_Result")


class CorruptError(Exception):
    """Files whose content does not match the hub's record."""


def persistently(work: Callable[[], _Result], where: str) -> _Result:
    """The result of `work`, which is tried again after temporary failures.

    Raises:
        InputError: it failed for good.
    """
    try:
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(TRIES),
            wait=tenacity.wait_exponential_jitter(initial=1, max=LONGEST_WAIT),
            before_sleep=lambda state: _say(state, where),
            reraise=True,
        )(work)
    except (OSError, ValueError, httpx2.HTTPError, HfHubHTTPError, CorruptError) as error:
        # hub errors, transport errors and broken JSON; none of their texts contains the token
        raise InputError(_explain(error, where)) from error


def _say(state: tenacity.RetryCallState, where: str) -> None:
    error = state.outcome.exception() if state.outcome else None
    pause = state.next_action.sleep if state.next_action else 0
    print(
        f"{where}: {brief(error)}; try {state.attempt_number + 1} of {TRIES} in {pause:.0f} s",
        flush=True,
    )


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, (RepositoryNotFoundError, RevisionNotFoundError, OfflineModeIsEnabled)):
        return False
    if isinstance(error, LocalEntryNotFoundError):  # raised for any failure to ask the hub
        return error.__cause__ is not None and _may_pass(error.__cause__)
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code in WORTH_ANOTHER_TRY
    if isinstance(error, httpx2.TransportError):
        return not _is_unresolved(error)
    if isinstance(error, CorruptError):
        return True
    if isinstance(error, ValueError):  # a page of a proxy in place of JSON
        return "JSON" in type(error).__name__
    return isinstance(error, OSError) and "Consistency check failed" in str(error)


def _is_unresolved(error: BaseException) -> bool:
    """Whether a name did not resolve, so that another try is useless."""
    chain: BaseException | None = error
    while chain is not None and not isinstance(chain, socket.gaierror):
        chain = chain.__cause__ or chain.__context__
    return chain is not None


def _explain(error: BaseException, where: str) -> Problem:
    cause = error
    while isinstance(cause, LocalEntryNotFoundError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if _is_unresolved(cause):
        return no_network(brief(cause), where)
    if isinstance(cause, OfflineModeIsEnabled) or (
        isinstance(cause, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
    ):
        return Problem(
            where,
            "HF_HUB_OFFLINE is set, and the cache does not hold all of it",
            f"the wanted files in {constants.HF_HUB_CACHE}",
            "run once with a network, or point HF_HOME at the cache that has them",
        )
    if isinstance(cause, GatedRepoError) or _is_denied(cause):
        return Problem(
            where,
            "the hub wants a token that may read it",
            "a repository that anyone may read, or HF_TOKEN",
            "ask for access on the hub, then set HF_TOKEN in the environment",
        )
    if isinstance(cause, (RepositoryNotFoundError, RevisionNotFoundError)):
        missing = "commit" if isinstance(cause, RevisionNotFoundError) else "repository"
        return Problem(
            where,
            f"{constants.ENDPOINT} has no such {missing}, or shows it only with a token",
            "a repository and a commit of it that the hub has",
            "look both up on the hub; for a private repository set HF_TOKEN in the environment",
        )
    if isinstance(cause, CorruptError):
        return Problem(
            where,
            f"other content than the hub lists, in {TRIES} tries: {cause}",
            "the content that its checksum names",
            "look for a proxy or a mirror that changes files, then run again: whole files are kept",
        )
    if isinstance(cause, OSError) and cause.errno is not None:
        return Problem(
            where,
            brief(cause),
            f"a cache that can be written: {constants.HF_HUB_CACHE}",
            "free or mend the disk, or set HF_HOME to another",
        )
    return Problem(
        where,
        f"{brief(cause)}, in {TRIES} tries" if _may_pass(cause) else brief(cause),
        f"an answer of the hub at {constants.ENDPOINT}",
        "check the network and HF_ENDPOINT, then run again: whole files are kept",
    )


def _is_denied(error: BaseException) -> bool:
    """Whether the hub has denied access without giving a reason."""
    response = error.response if isinstance(error, HfHubHTTPError) else None
    return response is not None and response.status_code in (401, 403)
