"""/pooling and /classify: pooled outputs of prompts or of each of their tokens."""
