"""The plan of a run: downloads, time, memory, and requests to a scheduler."""
