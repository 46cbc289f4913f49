"""What was memorized: where the samples of each family come from."""
