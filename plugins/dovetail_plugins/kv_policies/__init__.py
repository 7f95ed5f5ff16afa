"""KV policies: how the KV cache is laid out and its blocks are handed out."""
