"""What this server is set to, and who decided it."""
