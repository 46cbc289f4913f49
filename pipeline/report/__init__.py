"""The report: figures and one page, made from the tables; nothing here imports torch."""
