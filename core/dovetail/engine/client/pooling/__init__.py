"""Requests to pooling models: embeddings, classes and scores."""
