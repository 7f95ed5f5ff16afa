"""The rules of resolving, one subject per file; resolve.py puts them in order."""
