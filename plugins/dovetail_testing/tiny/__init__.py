"""Tiny random models: a transformer without files, and checkpoints of every family."""
