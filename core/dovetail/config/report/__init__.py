"""The configuration in words: help, reference pages, and what came out of resolving."""
