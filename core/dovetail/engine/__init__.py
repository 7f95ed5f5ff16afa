"""The engine: requests, KV blocks, step loop, processes, outputs. Contains no tensor code."""
