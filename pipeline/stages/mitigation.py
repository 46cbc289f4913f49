"""The stage that edits a model by one method at several doses, and probes the chosen one."""

from collections.abc import Callable
from functools import partial

import polars as pl
import torch
from transformers import PreTrainedModel

from pipeline.measure.durability import probes
from pipeline.measure.mitigated import detectors, labelled, outcomes, price, sampled
from pipeline.mitigations.methods import METHODS, chosen_dose, edited
from pipeline.mitigations.rows import recited
from pipeline.mitigations.schemas import OUTCOMES
from pipeline.mitigations.subject import TEXT, Subject, other_model, subject
from pipeline.study.schema import Study, given
from pipeline.tasks.loading import load_tasks
from pipeline.workflow import tables
from pipeline.workflow.progress import reporter
from pipeline.workflow.running import costed, determined_by


def mitigation(study: Study, name: str) -> None:
    """Measure one method: every dose, then the probes of durability at the chosen dose."""
    asked, benchmarks = given(study.mitigations), study.benchmarks
    torch.set_num_threads(1)  # the methods run side by side; more would sum in another order
    with costed(study.data, "mitigation", name):
        known = subject(study.data, asked, study.model(asked.model), study.corpus[study.study])
        tasks = {}
        if benchmarks:
            tasks = load_tasks(benchmarks.tasks, study.tasks, benchmarks.num_fewshot)
        at, chosen, doses = _doses(name, known, asked.seed)
        text = known.parts.splits[TEXT]
        labels = sampled(known.model, text.rows, asked.seed)
        report, frames = reporter(f"doses of {name}", "doses"), list[pl.DataFrame]()
        for done, dose in enumerate(doses, 1):
            model = at(dose)
            found = [outcomes(model, known.parts, known.tokenizer, tasks)]
            if name == "none":
                found.append(detectors(model, known.parts, asked.seed))
            elif name in METHODS:
                predicted = price(known.model, model, text.rows, labels)
                found.append(labelled(text, TEXT, "price", predicted))
            frames += [frame.with_columns(dose=pl.lit(dose)) for frame in found]
            report(done, len(doses))
        before = known.model if name in METHODS else None
        how = asked.seed, asked.relearning, before
        last = probes(at(chosen), known.parts, *how, reference=name == "twin")
        made = pl.concat([*frames, last.with_columns(dose=pl.lit(chosen))])
        settings = asked.model_dump(exclude={"methods"})
        provenance = determined_by(study.study, mitigations=settings, method=name)
        path = study.data / "mitigation" / f"{name}.parquet"
        tables.write(made, path, OUTCOMES, provenance)


def _doses(
    name: str, known: Subject, seed: int
) -> tuple[Callable[[float], PreTrainedModel], float, list[float]]:
    """What gives the model of a dose, the chosen dose, and all doses."""
    if name not in METHODS:
        other = other_model(name, known)
        return lambda _dose: other, 0.0, [0.0]
    method, forget = METHODS[name], known.parts.forget
    write = method.prepare(known.model, forget, known.parts.keep, seed)
    at, before = partial(edited, known.model, write), recited(known.model, forget)

    def left(dose: float) -> float:
        return float(recited(at(dose), forget)[before].double().mean())

    chosen = chosen_dose(method, left)
    return at, chosen, sorted({*map(float, method.doses), chosen})
