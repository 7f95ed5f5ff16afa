"""KV blocks of dovetail in an LMCache server."""
