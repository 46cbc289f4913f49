"""What is shown: one summary table, its figures, one page. Reads tables and knows no torch."""
