"""Reuses the interventions of an earlier table that need not be computed again.

If a line is added under `interventions`, only that line is computed. Each intervention's rows of a
table have a key, a checksum of all that determines them. The table carries its keys in its
metadata, and the next run of the stage takes the rows whose keys it needs. The name of an
intervention is not part of the key, since it does not affect the result.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import polars as pl

from pipeline.interventions.edits import MEAN, rule_of, rules_of
from pipeline.interventions.interventions import Intervention
from pipeline.workflow import tables
from pipeline.workflow.errors import InputError
from pipeline.workflow.tables import Schema

KEYS = "keys"
"""The metadata entry of a table that maps intervention -> key."""


def keys(
    interventions: Sequence[Intervention],
    determined_by: Mapping[str, object],
    samples: str,
    sources: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Name of each intervention -> the key of its rows.

    Args:
        interventions: V of them, of distinct names.
        determined_by: what determines the rows beyond the intervention: checkpoint, items,
            versions, device, dtype and code; JSON values only.
        samples: checksum of the samples over which some edits take a mean.
        sources: model whose values patches put in -> what its weights are.
    """
    found = {}
    for one in interventions:
        rules = {block: rule_of(edit) for block, edit in one.edits.items()}
        parts: dict[str, object] = {
            "edits": [[block, rule.name, rule.code] for block, rule in rules.items()],
            **{name: getattr(one, name) for name in ("heads", "seed", "neurons", "positions")},
            "source": (sources or {}).get(one.source or ""),
        }
        if takes_mean([one]):
            parts["samples"] = samples
        content = json.dumps([determined_by, parts], sort_keys=True)
        found[one.name] = hashlib.sha256(content.encode()).hexdigest()
    return found


def takes_mean(interventions: Sequence[Intervention]) -> bool:
    """Whether one of the interventions has an edit that takes a mean over samples."""
    return any(MEAN in rule.needs for rule in rules_of(interventions))


def extended(
    interventions: Sequence[Intervention],
    wanted: Mapping[str, str],
    files: Mapping[Path, Schema],
    cached: Callable[[Path], Path | None],
    compute: Callable[[Sequence[Intervention]], Sequence[pl.DataFrame]],
) -> list[pl.DataFrame]:
    """The tables of a stage, with rows of an earlier run reused where possible.

    Args:
        interventions: V of them, in the order of the tables.
        wanted: their keys, from `keys`.
        files: each table's place -> its schema; all have a column ``intervention``.
        cached: gives another place where an earlier file may be; None: nowhere.
        compute: makes the tables of some of the interventions, in the order of `files`. It is not
            called if nothing is missing.

    Returns:
        The tables in the order of `files`, their rows in the order of `interventions`.
    """
    earlier = [_earlier(path, schema, cached, wanted) for path, schema in files.items()]
    reused = set.intersection(*(set(names) for _, names in earlier))
    missing = [one for one in interventions if one.name not in reused]
    if not reused:
        return list(compute(missing))
    counts = f"{len(reused)} of {len(interventions)} interventions"
    print(f"{counts} are taken from the earlier table", flush=True)
    computed = compute(missing) if missing else [table.clear() for table, _ in earlier]
    joined = []
    for (table, names), new in zip(earlier, computed, strict=True):
        parts = new.select(table.columns).partition_by("intervention", as_dict=True)
        for name in reused:
            rows = table.filter(intervention=names[name])
            parts[name,] = rows.with_columns(intervention=pl.lit(name))
        joined.append(pl.concat([parts.get((one.name,), table.clear()) for one in interventions]))
    return joined


def _earlier(
    path: Path,
    schema: Schema,
    cached: Callable[[Path], Path | None],
    wanted: Mapping[str, str],
) -> tuple[pl.DataFrame, dict[str, str]]:
    """An earlier table, and the name in it of each intervention whose key is wanted."""
    file = path if path.exists() else cached(path)
    if file is None:
        return pl.DataFrame(), {}
    try:
        frame, stored = tables.read(file, schema), tables.provenance(file).get(KEYS)
    except InputError:  # damaged, or of another schema
        return pl.DataFrame(), {}
    before = {key: name for name, key in stored.items()} if isinstance(stored, dict) else {}
    return frame, {name: before[key] for name, key in wanted.items() if key in before}
