"""The summaries that the tests of the analysis use."""

from tests.analysis.conftest import evidence_of_paper, study, summary, written

__all__ = ["evidence_of_paper", "study", "summary", "written"]
