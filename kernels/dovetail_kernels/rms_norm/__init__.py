"""rms_norm: x / sqrt(mean(x^2) + eps) * weight, computed in float32.

Shapes: x [T, E], weight [E] -> [T, E] in x's dtype
Source: Zhang, Sennrich, "Root mean square layer normalization", 2019
"""

from dovetail_kernels.op import Op
from dovetail_kernels.rms_norm.cases import cases
from dovetail_kernels.rms_norm.reference import reference

OP = Op(name="rms_norm", summary="root mean square norm", reference=reference, cases=cases)
