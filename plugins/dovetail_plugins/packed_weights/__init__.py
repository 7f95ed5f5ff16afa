"""Packed weights on disk, so that a second start maps them instead of reading and packing."""
