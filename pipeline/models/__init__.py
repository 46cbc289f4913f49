"""The anatomy of a stock transformers model: the modules on which interventions act."""
