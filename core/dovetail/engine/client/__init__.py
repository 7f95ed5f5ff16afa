"""What an API process or a script sees of an engine: text in, deltas out."""
