"""Rules about media in prompts."""
