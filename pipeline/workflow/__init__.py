"""Runs the stages: scheduling, locks, devices, downloads, tables."""
