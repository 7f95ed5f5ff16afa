"""Cohere's API, version 2."""
