"""Rewrites schemas before backends see them; see `pipeline`."""
