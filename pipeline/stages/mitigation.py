"""The stage that edits a model by one method at several doses, and probes the chosen one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import torch

from pipeline.measure.durability import probes
from pipeline.measure.mitigated import detectors, labelled, outcomes, price
from pipeline.mitigations.methods import METHODS, chosen_dose, edited
from pipeline.mitigations.parts import TEXT
from pipeline.mitigations.rows import recited
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.mitigations.subject import Subject, other_model, subject
from pipeline.study.schema import Study, given
from pipeline.tasks.loading import load_tasks
from pipeline.workflow import tables
from pipeline.workflow.progress import reporter
from pipeline.workflow.running import costed, determined_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    Look = Callable[[PreTrainedModel], pl.DataFrame]


def mitigation(study: Study, name: str) -> None:
    """Measure one method: every dose, then the probes of durability at the chosen dose."""
    asked, benchmarks = given(study.mitigations), study.benchmarks
    torch.set_num_threads(1)  # the methods run side by side; more would sum in another order
    with costed(study.data, "mitigation", name):
        known = subject(study.data, asked, study.model(asked.model), study.corpus[study.study])
        tasks = (
            load_tasks(benchmarks.tasks, study.tasks, benchmarks.num_fewshot) if benchmarks else {}
        )

        def look(model: PreTrainedModel) -> pl.DataFrame:
            return outcomes(model, known.parts, known.tokenizer, tasks)

        if name in METHODS:
            dose, changed, frames = _doses(name, known, look, asked.seed)
        else:
            dose, changed = 0.0, other_model(name, known)
            frames = [look(changed).with_columns(dose=pl.lit(dose))]
        before = known.model if name in METHODS else None
        found = probes(changed, known.parts, asked.seed, before, reference=name == "twin")
        made = tables.cast(pl.concat([*frames, found.with_columns(dose=pl.lit(dose))]), OUTCOMES)
        settings = asked.model_dump(exclude={"methods"})
        provenance = determined_by(study.study, mitigations=settings, method=name)
        tables.write(made, study.data / "mitigation" / f"{name}.parquet", OUTCOMES, provenance)


def _doses(
    name: str, known: Subject, look: Look, seed: int
) -> tuple[float, PreTrainedModel, list[pl.DataFrame]]:
    """The chosen dose, its model, and the outcomes of every dose with their predicted price."""
    method, forget, text = METHODS[name], known.parts.forget, known.parts.splits[TEXT]
    write = method.prepare(known.model, forget, known.parts.keep, seed)
    at_first = recited(known.model, forget)

    def left(dose: float) -> float:
        hits = recited(edited(known.model, write, dose), forget)[at_first]
        return float(hits.double().mean())

    chosen = chosen_dose(method, left)
    report, frames = reporter(f"doses of {name}", "doses"), []
    doses = sorted({*map(float, method.doses), chosen})
    for done, dose in enumerate(doses, 1):
        model = edited(known.model, write, dose)
        found = [look(model)]
        if name == "none":
            found.append(detectors(model, known.parts, seed))
        else:
            predicted = price(known.model, model, text.rows, seed)
            found.append(labelled(text, TEXT, "price", predicted))
        frames += [frame.with_columns(dose=pl.lit(dose)) for frame in found]
        report(done, len(doses))
    return chosen, edited(known.model, write, chosen), frames
