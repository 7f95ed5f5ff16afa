"""Plugins: text to token ids and back."""
