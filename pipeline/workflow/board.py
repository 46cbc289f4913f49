"""What a terminal shows of a `snakemake` run: a line for each stage that runs, and for the whole.

Snakemake's own lines, with the inputs and resources of each job, are in its log. Without a terminal
they are printed as ever.
"""

import atexit
import logging
import shutil
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from pipeline.workflow.progress import PROGRESS, duration

USUAL = (
    "Building DAG", "Using shell", "Select jobs", "Assuming unrestricted", "Conda environments",
    "Singularity containers", "Group jobs",
)  # fmt: skip
"""How lines of Snakemake begin that say nothing of this run; a line that is not known is shown."""


class Board(logging.Handler):
    """Takes the place of Snakemake's terminal handler, whose filter and words of errors stay."""

    def __init__(self, default: logging.Handler) -> None:
        super().__init__()
        self.setFormatter(default.formatter)
        for each in default.filters:
            self.addFilter(each)
        columns = TextColumn("{task.description}", markup=False), _HowFar(), TimeElapsedColumn()
        self._shown = Progress(*columns, console=Console(stderr=True), refresh_per_second=2)
        self._stages: Mapping[int, str] = {}
        self._rows: dict[int, tuple[TaskID, float]] = {}
        atexit.register(self._shown.stop)  # a hidden cursor would stay so

    def start(self, stages: Mapping[int, str]) -> None:
        """Show the whole; `stages` has the address of the stage of each job."""
        shutil.rmtree(PROGRESS, ignore_errors=True)
        PROGRESS.mkdir(parents=True, exist_ok=True)  # a stage of a killed run may still write there
        self._stages = stages
        self._whole = self._shown.add_task("all stages", total=len(stages))
        self._shown.start()

    def stop(self) -> None:
        """Leave the terminal to what comes after."""
        self._shown.stop()
        shutil.rmtree(PROGRESS, ignore_errors=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Show what a record of Snakemake's log means."""
        event = getattr(record, "event", None)
        if event == "job_started":
            for job in vars(record)["jobs"]:
                if job in self._stages:
                    row = self._shown.add_task(self._stages[job], total=None)
                    self._rows[job] = row, time.monotonic()
        elif event == "job_finished":
            self._end(vars(record)["job_id"], "done in")
            self._shown.update(self._whole, advance=vars(record)["job_id"] in self._stages)
        elif record.levelno >= logging.WARNING:
            self._end(vars(record).get("jobid", -1), "failed after")
            self._say(self.format(record), "red")
        elif event is None and not str(record.msg).startswith(USUAL):
            self._say(self.format(record))

    def _end(self, job: int, how: str) -> None:
        if job in self._rows:
            row, began = self._rows.pop(job)
            self._shown.remove_task(row)
            self._say(f"{self._stages[job]}: {how} {duration(time.monotonic() - began)}")

    def _say(self, line: str, style: str | None = None) -> None:
        self._shown.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def take_over(logger: logging.Logger) -> Board | None:
    """Show the board in place of Snakemake's own lines, unless these are asked for.

    It is None without a terminal, with ``--verbose``, or with another handler of the user's.
    """
    for handler in logger.handlers:
        stream = getattr(handler, "stream", None)
        if handler.name == "DefaultStreamHandler" and stream and stream.isatty():
            if logger.level <= logging.DEBUG:
                return None
            logger.removeHandler(handler)
            board = Board(handler)
            logger.addHandler(board)
            return board
    return None


class _HowFar(ProgressColumn):
    """How far a stage says that it is; of the whole, the number of its stages."""

    def render(self, task: Task) -> Text:
        if task.total is not None:
            return Text(f"{task.completed:.0f} of {task.total:.0f}")
        try:
            return Text((PROGRESS / task.description).read_text(encoding="utf-8"))
        except OSError:  # it has said nothing
            return Text()
