"""Stat loggers: where the engine's numbers go."""
