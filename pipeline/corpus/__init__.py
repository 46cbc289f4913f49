"""The generated corpus that models memorize, and the benchmark tasks that come with it."""
