"""Reasoning parsers: one file per way in which models mark their thinking."""
