"""The memory of a rank's KV cache, and copies of its blocks elsewhere."""
