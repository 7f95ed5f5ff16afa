"""Finds arrays with unique items in a schema, and forbids tokens that would repeat an item."""
