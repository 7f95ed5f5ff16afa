"""LLM: a model for scripts and notebooks."""
