"""Stat loggers: the destinations of the engine's metrics."""
