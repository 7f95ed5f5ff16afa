"""From a conversation or a prompt to a stream of steps. Independent of the API dialects."""
