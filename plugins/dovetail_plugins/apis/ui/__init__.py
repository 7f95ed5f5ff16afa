"""The page at /: chat, server state and settings."""
