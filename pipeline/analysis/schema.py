"""The section `statistics` of params.yaml: intervals, and when a claim counts as shown."""

from __future__ import annotations

from pydantic import Field

from pipeline.workflow.schema import Section, Seed, Share


class Thresholds(Section):
    """When a claim counts as shown; set before any result was seen. Shares of the baseline."""

    significance: Share = Field(
        default=0.05,
        description="largest chance that any verdict of one claim is wrong, over all models and "
        "blocks",
    )
    reduced: Share = Field(
        default=0.1, description="least share that exact match loses where it is reduced"
    )
    little_cost: Share = Field(
        default=0.1,
        description="largest share of its lead over chance that each benchmark loses, and by which "
        "perplexity grows, where a bypass costs little",
    )
    collapsed: Share = Field(default=0.5, description="least share that is lost in a collapse")
    resists: Share = Field(
        default=0.05,
        description="least share by which one keeps more than another that it resists more than; "
        "of sizes, for each tenfold of the parameters",
    )
    near_zero: Share = Field(
        default=0.05,
        description="largest share that is kept where exact match is near zero",
    )
    by_length: Share = Field(
        default=0.5,
        description="largest share of what exact match loses that single tokens lose, where its "
        "fall is a matter of length",
    )


class Statistics(Section):
    """Intervals, and when a claim counts as shown."""

    seed: Seed = Field(description="of the bootstrap, and of the sign flips of the tests")
    thresholds: Thresholds = Field(
        default=Thresholds(), description="of the findings; no other result depends on them"
    )
