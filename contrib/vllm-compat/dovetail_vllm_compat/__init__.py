"""Plugin files written for vLLM, as parsers of dovetail. The entry point in pyproject.toml names
what runs them; nothing is here."""
