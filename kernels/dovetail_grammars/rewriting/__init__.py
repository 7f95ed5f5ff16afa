"""What becomes of a schema before a backend sees it; see `pipeline`."""
