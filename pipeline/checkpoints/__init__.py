"""By whom it was memorized: where the weights of each model come from."""
