"""Engines that the caller steps in its own thread, for scripts."""
