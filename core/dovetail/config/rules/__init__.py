"""The rules of resolving, one subject a file; resolve.py puts them in order."""
