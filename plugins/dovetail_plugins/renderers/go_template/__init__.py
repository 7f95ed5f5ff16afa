"""Chat templates in Go's text/template language, as Ollama's models have them."""
