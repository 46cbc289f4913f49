"""Tests of the benchmark of localization."""
