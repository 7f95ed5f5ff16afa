"""Rules about steps and the KV cache: sizes, limits, backends and optimization."""
