"""Structured output: compiles constraints in killable processes, and turns them into masks over the
vocabulary, filled during the forward pass.

Backends are plugins of the kind structured_output_backend; this package owns their lifecycle.
"""
