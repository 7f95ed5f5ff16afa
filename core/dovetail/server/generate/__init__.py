"""From a conversation or a prompt to a stream of steps. Knows no API."""
