"""KV blocks in a Mooncake store."""
