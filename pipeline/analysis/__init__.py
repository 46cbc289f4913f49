"""The analysis of the measurements: estimates, intervals, verdicts, checks."""
