"""Media in prompts: from what a client sends to what a model's encoder reads."""
