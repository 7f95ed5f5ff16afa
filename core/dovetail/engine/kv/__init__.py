"""KV blocks: which exist, which requests own them, and which can be reused by their prefix."""
