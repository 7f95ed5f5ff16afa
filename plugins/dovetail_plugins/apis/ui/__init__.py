"""The page at /: chat, the server's state, its settings."""
