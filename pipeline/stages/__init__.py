"""The stages: one module each, a function that reads, calls what computes, and writes."""
