"""embedding: out[t] = table[ids[t] - first] * scale * factor, zeros if there is no such row.

An int8 table has a scale per row. Rows outside the table belong to other ranks. With `onto`, rows
are added to it in place. Without ids every row is the table's first.

Shapes: ids [T] int64, table [V, E], scales [V] float32, onto [T, E] float32 -> [T, E] float32
"""

from dovetail_kernels.embedding.cases import cases, perf_cases
from dovetail_kernels.embedding.native import NATIVE
from dovetail_kernels.embedding.reference import reference
from dovetail_kernels.op import Op

OP = Op(
    name="embedding",
    summary="rows of a table as floats",
    reference=reference,
    cases=cases,
    perf_cases=perf_cases,
    implementations=[NATIVE],
)
"""A case's dtype is that of the floats that come out."""
