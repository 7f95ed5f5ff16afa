"""Adapters: readers of LoRA and its variants, and of vectors that precede a prompt."""
