"""Parsing: arguments, YAML files and environment variables become one Config."""
