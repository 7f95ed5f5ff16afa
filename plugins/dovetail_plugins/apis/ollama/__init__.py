"""/api/chat, /api/generate and related paths: Ollama's API."""
