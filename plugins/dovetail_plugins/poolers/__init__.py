"""Poolers: from hidden states to vectors, one file per name."""
