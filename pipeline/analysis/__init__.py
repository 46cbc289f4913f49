"""What the measurements mean: estimates, intervals, verdicts, checks."""
