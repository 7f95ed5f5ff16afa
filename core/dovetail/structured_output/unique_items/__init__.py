"""Enforces `uniqueItems` during generation: forbids tokens that would repeat an item."""
