"""Text in, step, text out: requests, KV blocks, step loop, processes, outputs. Knows no tensors."""
