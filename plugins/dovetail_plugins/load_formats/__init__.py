"""Plugins: file formats of weights, one module per format."""
