"""The API process's or script's interface to an engine: text in, deltas out."""
