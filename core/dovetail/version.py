"""The version of dovetail, in one place."""

__version__ = "0.1.0"
