"""A step on its way through a runner: its stages, unread results, and the parts it passes."""
