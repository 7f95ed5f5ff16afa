"""From engine updates to text, deltas and statistics."""
