"""Bounds and theorems, checked on real and on small models."""
