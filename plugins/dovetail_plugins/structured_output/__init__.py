"""Structured-output backends, one file per library."""
