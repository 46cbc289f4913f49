"""Benchmarks: lm-eval's tasks and their datasets."""
