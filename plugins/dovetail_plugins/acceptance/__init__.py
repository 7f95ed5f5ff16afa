"""Acceptance of drafts, one file per name."""
