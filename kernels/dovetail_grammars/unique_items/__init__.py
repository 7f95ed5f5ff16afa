"""Finds arrays with unique items, in a schema and in an answer while it is generated."""
