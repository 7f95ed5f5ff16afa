"""Shared by the GGUF plugins: the file, its names, its settings, its vocabulary, its types.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
