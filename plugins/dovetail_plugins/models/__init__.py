"""Plugins: one file per model family; the entry-point name is the checkpoint's architecture."""
