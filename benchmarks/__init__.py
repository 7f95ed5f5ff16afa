"""Scripts that measure dovetail, not part of the distribution. Most run by path from a checkout."""
