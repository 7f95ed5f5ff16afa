"""Schedulers: which request computes how many tokens in each step."""
