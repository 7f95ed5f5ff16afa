"""Rules about pooling models: embeddings, classes and scores."""
