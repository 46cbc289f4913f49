"""The checkpoints of the models, from several sources."""
