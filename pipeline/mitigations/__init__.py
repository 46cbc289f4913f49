"""Changes of weights that are to remove memorized text, and what shows whether it stays away."""
