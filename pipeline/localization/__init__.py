"""Models in which the place of a memory is known, and scorers that are to find it."""
