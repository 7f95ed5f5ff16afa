"""The sizes of steps that the device has programs for, and the words for them in a plan."""

from __future__ import annotations

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BUCKET, PADDING = "pretend.bucket", "pretend.padding"


def bucket_of(num_tokens: int) -> int:
    """Return the smallest size that holds that many tokens."""
    return next(size for size in SIZES if size >= num_tokens)
