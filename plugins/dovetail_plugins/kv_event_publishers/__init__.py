"""Publishers of what an engine's prefix cache holds."""
