"""Structured output: constraints are compiled in processes that may be killed, and become masks
over the vocabulary that are filled during the forward pass.

Backends are plugins of the kind structured_output_backend; this package owns their lifecycle.
"""
