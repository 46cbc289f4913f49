"""The figures, one module per kind: each selects its data from the summary and draws only that."""
