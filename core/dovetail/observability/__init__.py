"""Observability: log lines, metrics, and the stat loggers that are plugins."""
