"""Publishers of the content of an engine's prefix cache."""
