"""Drafters: guess the next tokens of a request."""
