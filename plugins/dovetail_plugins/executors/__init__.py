"""Executors: call the workers of every rank and gather their answers."""
