"""Tool parsers: one file per syntax in which models write calls."""
