"""checksum: sums that change with every change of a few bytes, for finding damaged files.

Bytes are little-endian words of 32 bits, in pieces of `PIECE_BYTES` (the last is filled up with
zeros), word i in lane i % 16. A lane has the sum of its n words, and the sum of n, n - 1, ..., 1
times each, both modulo 2^32: as in Fletcher's checksum, an exchange of words is noticed too.

Shapes: data [N] uint8, contiguous -> [pieces, 2, 16] int32
Source: Fletcher, "An Arithmetic Checksum for Serial Transmissions", 1982
"""

from dovetail_kernels.checksum.cases import cases, perf_cases
from dovetail_kernels.checksum.native import NATIVE
from dovetail_kernels.checksum.reference import PIECE_BYTES, reference
from dovetail_kernels.op import Op

__all__ = ["OP", "PIECE_BYTES"]

OP = Op(
    name="checksum",
    summary="sums that find damaged bytes",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
