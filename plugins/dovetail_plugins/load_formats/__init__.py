"""Plugins: ways weights lie on disk, one file per format."""
