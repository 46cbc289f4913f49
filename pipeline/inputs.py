"""What DVC records of a stage must be what the stage has read.

DVC takes the checksums of a stage's inputs when its command has ended. A param, a module or a table
that was edited meanwhile would be recorded beside results that know nothing of it, and the stage
would be called fresh from then on. So the command itself compares its inputs at its end with those
at its beginning, by DVC's own checksums, and fails where they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import PipelineStage

from pipeline.errors import InputError, Problem


@contextmanager
def held_still(address: str) -> Iterator[None]:
    """Fail at the end if an input of the stage is another than at the beginning.

    Args:
        address: of the stage that runs, such as ``memorization@tiny-neo-8``.

    Raises:
        InputError: one has changed; DVC then records nothing.
    """
    [stage] = Repo().stage.collect(address)
    before = _checksums(stage)
    yield
    after = _checksums(stage)
    changed = [name for name, checksum in before.items() if after.get(name) != checksum]
    if changed:
        raise InputError(
            Problem(
                f"inputs of stage {address}",
                f"changed while it ran: {', '.join(changed)}",
                "the same from its beginning to its end, or nobody knows what its results are of",
                "run it again; what it wrote is not recorded",
            )
        )


def _checksums(stage: PipelineStage) -> dict[str, object]:
    """Dep, or param -> what DVC would record of it; None where there is nothing."""
    found: dict[str, object] = {}
    for dep in stage.deps:
        try:
            dep.save()
        except DvcException:  # it was deleted
            found[str(dep)] = None
            continue
        value = dep.hash_info.value
        found |= value if isinstance(value, dict) else {str(dep): value}
    return found
