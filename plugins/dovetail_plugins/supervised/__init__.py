"""A server that can be replaced by another while it serves: `dovetail supervise` and `deploy`."""
