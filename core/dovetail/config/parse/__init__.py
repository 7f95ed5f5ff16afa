"""Arguments, YAML files and environment variables become one Config."""
