"""Guided-decoding backends: one file per library."""
