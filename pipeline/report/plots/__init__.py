"""The figures, a module a kind: each cuts the summary to its data and draws from that alone."""
