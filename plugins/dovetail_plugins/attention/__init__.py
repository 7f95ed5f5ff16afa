"""Attention backends: attention over the paged KV cache."""
