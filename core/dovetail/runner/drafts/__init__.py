"""Drafter models that run on the worker, and the verification of drafts."""
