"""What is asked: the study in force."""
