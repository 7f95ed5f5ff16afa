"""Plugins that end answers because of their tokens."""
