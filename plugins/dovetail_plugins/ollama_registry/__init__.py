"""Models of Ollama's registry: their names, how they are fetched, and how they are deleted."""
