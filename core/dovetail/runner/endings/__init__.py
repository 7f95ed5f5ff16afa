"""What becomes of hidden states: drawn tokens, pooled vectors, or the next stage's input."""
