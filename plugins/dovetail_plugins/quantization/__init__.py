"""Plugins: ways weights are stored and multiplied, one file per method."""
