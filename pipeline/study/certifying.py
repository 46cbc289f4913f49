"""The certificate of an edit on a checkpoint, asked for by a command."""

from pipeline.interventions.interventions import EACH, EACH_HEAD, HEADS, Group, is_own, sweep
from pipeline.study.checks import missing
from pipeline.workflow.errors import bad_input


def certify(model: str, edit: str) -> str:
    """Try an edit in the blocks of a checkpoint; its certificate, as text.

    The model is a folder, one of the study in force, or OWNER/NAME@COMMIT of the hub; the edit a
    name, or ``edits/FILE.py:FUNCTION``.

    Raises:
        InputError: an unknown edit or model, or a check that failed.
    """
    try:
        group = Group(EACH_HEAD if edit == HEADS else EACH, edit)
    except ValueError as error:
        raise bad_input("--edit", str(error), "an edit", "docs/concepts.md lists them") from None
    if is_own(edit) and (problem := missing("--edit", edit)):
        raise bad_input(*problem)
    from pipeline.checkpoints.loading import model_of  # the checks come before: torch is slow
    from pipeline.interventions.certificates import CHECKS, certificates
    from pipeline.interventions.exporting import tokens_to_compare
    from pipeline.interventions.guard import prepare
    from pipeline.models.sites import anatomy
    from pipeline.study.export import source_of

    loaded = model_of(source_of(model).files, "auto")
    known = anatomy(loaded)
    listed = sweep(len(known.sites), [group], known.sites[0].values.heads)
    prepare(loaded, listed, tokens_to_compare(loaded))
    lines = [f"{edit} on {model}: certified"]
    for made in certificates(loaded):
        blocks = ", ".join(map(str, made.blocks))
        lines.append(
            f"  block {blocks}: changes values by up to {made.change:.3g}; within "
            f"{made.difference:.1e} of the plain loop"
        )
    return "\n".join([*lines, *(f"  {check}: {what}" for check, what in CHECKS.items())])
