"""Logits processors: bans, biases and filters requested by sampling fields."""
