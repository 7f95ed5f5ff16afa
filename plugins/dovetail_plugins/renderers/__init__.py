"""Renderers: what makes the prompt of a conversation."""
