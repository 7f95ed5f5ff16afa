"""rotary: rotates pairs of features by an angle that grows with the position.

With c, s = cos, sin of the token's angles: halves (a, b) -> (a c - b s, b c + a s); a and b are the
first and second half of the rotated features (or, interleaved, its even and odd ones). Features
beyond the rotated ones are copied.

Shapes: x [T, H, D], cos and sin [T, D' / 2] float32 with D' <= D -> [T, H, D] in x's dtype
Source: Su et al., "RoFormer", 2021
"""

from dovetail_kernels.op import Op
from dovetail_kernels.rotary.cases import cases
from dovetail_kernels.rotary.reference import reference

OP = Op(name="rotary", summary="rotary position embedding", reference=reference, cases=cases)
