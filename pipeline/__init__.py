"""Analyzing memorization in language models through attention bypass: a reproducible pipeline."""
