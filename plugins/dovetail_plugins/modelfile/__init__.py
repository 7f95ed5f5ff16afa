"""Ollama's Modelfiles: read, written, and as flags of a dovetail server."""
