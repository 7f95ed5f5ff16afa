"""Health, load, metrics and version."""
