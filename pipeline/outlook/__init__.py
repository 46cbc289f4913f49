"""What a study will fetch, compute and store: a plan before the work."""
