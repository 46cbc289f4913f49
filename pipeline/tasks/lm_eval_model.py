"""A model class of lm-eval whose blocks are edited: ``--model bypass``.

    --model bypass --model_args pretrained=FOLDER,edit=identity,blocks=20+21

lm-eval after 0.4.13 finds the class by the entry point ``lm_eval.models`` of this package. 0.4.13
has no such mechanism; there this module is imported before lm-eval's own command line runs, as its
guide recommends for external classes: ``python -m pipeline lm_eval …``.

Source: lm-eval, docs/plugins.md and docs/model_guide.md.
"""

import sys
from collections.abc import Sequence
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from pipeline.interventions.editing import bypassed
from pipeline.interventions.edits import MEAN, RULES
from pipeline.interventions.interventions import HEADS, Intervention
from pipeline.workflow.errors import InputError, Problem, shorten


@register_model("bypass")
class Bypassed(HFLM):  # type: ignore[misc]
    """lm-eval's own class for transformers models, with blocks edited while the model computes.

    Args:
        pretrained: a folder or repository, as lm-eval's ``hf`` takes it.
        edit: of whole blocks, without a mean over a text: ``identity``, ``zero``, ``skip``, …
        blocks: block numbers (0-based) with ``+`` between them.
        others: lm-eval's own, such as ``revision`` and ``dtype``.

    Raises:
        InputError: an unknown edit or block, or a model that is not supported.
    """

    def __init__(
        self, pretrained: str, edit: str = "identity", blocks: str | int = "", **others: Any
    ) -> None:
        self._intervention = _intervention(edit, str(blocks))
        super().__init__(pretrained=pretrained, **others)
        with bypassed(self.model, self._intervention):
            pass  # raises for an impossible edit before the tasks are read

    def _model_call(self, *args: Any, **kwargs: Any) -> Any:
        with bypassed(self.model, self._intervention):
            return super()._model_call(*args, **kwargs)

    def _model_generate(self, *args: Any, **kwargs: Any) -> Any:
        with bypassed(self.model, self._intervention):
            return super()._model_generate(*args, **kwargs)


def run(arguments: Sequence[str]) -> None:
    """Run lm-eval's own command line with the class registered."""
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()


def _intervention(edit: str, blocks: str) -> Intervention:
    words = blocks.split("+")
    problems = []
    known = [name for name, rule in RULES.items() if MEAN not in rule.needs and name != HEADS]
    if edit not in known:
        problems.append(
            Problem("--model_args: edit", shorten(edit), ", ".join(known), "name one of these")
        )
    if not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        problems.append(
            Problem("--model_args: blocks", shorten(blocks), "such as 20+21", "count blocks from 0")
        )
    if problems:
        raise InputError(*problems)
    return Intervention(f"{edit} of {blocks}", dict.fromkeys(map(int, words), edit))
