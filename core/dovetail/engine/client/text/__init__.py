"""Tokenizers, and the processes that tokenize long texts."""
