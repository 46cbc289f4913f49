"""The section `statistics` of params.yaml: intervals, and when a claim counts as supported."""

from pydantic import Field

from pipeline.workflow.schema import Section, Seed, Share


class Thresholds(Section):
    """When a claim counts as supported; see docs/analysis-plan.md. Shares of the baseline."""

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
        description="least difference of shares kept that counts as more resistant; for sizes, "
        "per tenfold of the parameters",
    )
    near_zero: Share = Field(
        default=0.05,
        description="largest share that is kept where exact match is near zero",
    )
    by_length: Share = Field(
        default=0.5,
        description="largest loss of single tokens, as a share of the loss of exact match, where "
        "the loss counts as due to length",
    )


class Statistics(Section):
    """Intervals, and when a claim counts as supported."""

    seed: Seed = Field(description="of the sign flips of the tests")
    thresholds: Thresholds = Field(
        default=Thresholds(), description="of the findings; no other result depends on them"
    )
