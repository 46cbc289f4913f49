"""What else a model can do: lm-eval's tasks and their datasets."""
