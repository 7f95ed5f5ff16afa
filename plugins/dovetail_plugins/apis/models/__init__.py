"""/v1/models."""
