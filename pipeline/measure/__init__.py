"""What is measured: memorization of the samples, and benchmarks, under every intervention."""
