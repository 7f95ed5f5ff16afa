"""/pooling and /classify: what a model makes of prompts, or of each of their tokens."""
