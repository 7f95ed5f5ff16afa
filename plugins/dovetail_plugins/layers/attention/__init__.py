"""Attention with more than queries over a cache: gates, sinks, biases, indexers."""
