"""What is done to a model: interventions, and the evaluation of a model under them.

Imports torch and transformers alone, so that it runs on any machine that has those two.
"""
