"""Experts over several ranks: moved to even out the load, and used by other engines."""
