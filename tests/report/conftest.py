"""The summaries that the tests of the analysis use."""

from tests.analysis.conftest import study, summary, written

__all__ = ["study", "summary", "written"]
