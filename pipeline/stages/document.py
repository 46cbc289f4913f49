"""The stage that writes the pages of a user's documents."""

from pathlib import Path

from pipeline.report.document import write_documents
from pipeline.samples.texts import texts
from pipeline.study.schema import Study, given


def document(study: Study) -> None:
    """Write the pages that show which passages of the documents each model knows."""
    asked = given(study.windows)
    write_documents(
        study.study,
        study.data / "windows",
        [model.name for model in study.models.values() if model.name != asked.reference],
        texts(Path(asked.documents)),
        study.reports / "document",
        corpus=list(texts(Path(asked.corpus)).values()) if asked.corpus else None,
        reference=asked.reference,
        show_text=study.report.show_text,
    )
