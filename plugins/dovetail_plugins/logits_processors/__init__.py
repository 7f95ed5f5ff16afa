"""Logits processors: bans, biases and filters that a request asks for by its sampling fields."""
