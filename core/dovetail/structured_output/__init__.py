"""Structured outputs: compiling in processes that may be killed, masks beside the forward pass.

Backends are plugins of the kind structured_output_backend; this package owns their lives.
"""
