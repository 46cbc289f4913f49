"""The section `report` of params.yaml."""

from pydantic import Field

from pipeline.workflow.schema import Section


class Report(Section):
    """Settings of the page."""

    show_text: bool = Field(
        description="whether samples of real data, which can be private, are shown as text; as "
        "token ids otherwise. Generated ones are always shown as text"
    )
    command: str | None = Field(
        default=None,
        description="command that reproduces the study; null: that of this folder",
    )
