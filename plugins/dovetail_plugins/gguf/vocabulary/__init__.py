"""The tokenizer in a GGUF file."""
