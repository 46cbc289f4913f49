"""The stage that fetches the datasets of lm-eval's own tasks."""

from pipeline.study.schema import Study


def datasets(study: Study) -> None:
    """Fetch the datasets of lm-eval's own tasks."""
    from pipeline.tasks.datasets import fetch_datasets

    wanted = {task: pinned.model_dump() for task, pinned in study.datasets[study.study].items()}
    fetch_datasets(study.data / "datasets", wanted)
