"""The block types of GGUF: their bytes as numbers, and numbers as their bytes."""
