"""The measurements: memorization of the samples, and benchmarks, under every intervention."""
