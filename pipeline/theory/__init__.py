"""What should follow: bounds and theorems, checked on real and on small models."""
