"""Scheduling policies: the order in which requests wait, and who yields when blocks run out."""
