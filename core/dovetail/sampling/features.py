"""What a row's draw needs, as a set of bits. A step skips what none of its rows needs."""

RANDOM = 1
FILTERED = 2
PENALISED = 4
LOGPROBS = 8
PROCESSED = 16
FAULTY = 32
SHAPED = 64
"""A processor of a stage after the penalties needs the row."""
MANY_LOGPROBS = 128
"""More logprobs than the native kernels list, or logprobs of tokens named in the request."""
BY_LOGITS_ALONE = RANDOM | FILTERED
"""A row with only these bits draws by logits, seed and position, not by earlier tokens."""
