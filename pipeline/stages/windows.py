"""The stage that measures every window of a user's documents."""

from pathlib import Path

from pipeline.checkpoints.loading import load
from pipeline.checkpoints.schema import Model
from pipeline.interventions.memory import Journal
from pipeline.measure import schemas
from pipeline.measure.listed import named, read_listed
from pipeline.measure.sharded import Running
from pipeline.measure.windows import document, measure, recite
from pipeline.samples.texts import texts
from pipeline.stages.evaluated import Evaluated
from pipeline.study.schema import Study, given
from pipeline.workflow.digest import digest
from pipeline.workflow.progress import reporter
from pipeline.workflow.shards import open_shards


def windows(study: Study, model: Model) -> None:
    """Measure every window of the documents, and let the model recite from a seed in each."""
    evaluated, asked, journal = Evaluated(study, model), given(study.windows), Journal()
    names, listed = asked.of(model.name), read_listed(study.data, model.name)
    edits = named(f"windows.interventions, of {model.name}", names, listed)
    determined_by = evaluated.determined_by(windows=asked.model_dump(exclude={"corpus"}))
    determined_by |= evaluated.own(edits)
    with (
        open_shards(
            study.data / "partial" / "windows" / model.name,
            study.run.shard_minutes,
            {**determined_by, "code": digest("windows")},
        ) as shards,
        evaluated.on_device("windows", journal=journal) as device,
    ):
        progress = reporter(f"windows of {model.name}", "chunks")
        running = Running(study.run.token_budget, progress, journal, shards)
        loaded, tokenizer = load(evaluated.folder, evaluated.dtype, *device)
        chosen = evaluated.with_sources(edits, device)
        documents = [
            document(name, text, tokenizer, reference=reference)
            for path, reference in ((asked.documents, False), (asked.reference_text, True))
            if path
            for name, text in texts(Path(path)).items()
        ]
        made = measure(
            loaded,
            documents,
            asked.prefix_length,
            asked.suffix_length,
            chosen,
            stride=asked.stride,
            exact=asked.exact,
            running=running,
        )
        recited = recite(loaded, documents, made, chosen, tokenizer, running)
        evaluated.notes["shards"] = shards.told()
        table = f"windows/{model.name}"
        evaluated.write(made, schemas.WINDOWS, f"{table}.parquet", determined_by)
        evaluated.write(recited, schemas.RECITED, f"{table}.recited.parquet", determined_by)
        shards.finish()
