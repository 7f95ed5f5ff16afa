"""Mistral's own layout: settings, names of tensors, tokenizer files."""
