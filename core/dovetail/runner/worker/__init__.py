"""A rank's worker around its runner: its memory, its sleep, and its profiler."""
