"""What is generated to be memorized, and the benchmark tasks that come with it."""
