"""What Mistral publishes in its own layout: settings, names of tensors, tokenizer files."""
