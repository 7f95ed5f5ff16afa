"""Checkpoints written as GGUF files."""
