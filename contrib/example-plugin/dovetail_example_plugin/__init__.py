"""Example plugins for dovetail. The entry points in pyproject.toml name them; nothing is here."""
