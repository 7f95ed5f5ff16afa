"""Which KV blocks leave host memory or a folder that is full."""
