"""KV blocks: which exist, who holds them, which can be found again by their prefix."""
