"""How a model is built: where a stock transformers model has what interventions act on."""
