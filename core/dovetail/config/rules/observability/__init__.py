"""Rules about logs, profiles and statistics."""
