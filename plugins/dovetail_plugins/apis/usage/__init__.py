"""/v1/usage."""
