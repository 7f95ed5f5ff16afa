"""/api/chat, /api/generate and what goes with them: Ollama's API."""
