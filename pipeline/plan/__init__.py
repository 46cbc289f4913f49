"""What a run will take: downloads, time, memory, and what a scheduler asks for."""
