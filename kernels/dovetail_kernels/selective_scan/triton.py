"""selective_scan in Triton: one program some channels of one row, its tokens one after the other.

The state stays in registers from a row's first token of the step to its last. A decode is a loop of
one token. The order of arithmetic is that of a single token, so a row's results do not depend on
how it is cut into steps.

Floor: states are read and written once, x, dt, z and the result pass once, at the device's
bandwidth. A long prompt alone is below it: its tokens wait for each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from dovetail_kernels.gpu.rounding import nearest_bfloat16
from dovetail_kernels.gpu.states import block_of, is_kept, row_tokens, tokens_of

NUMBERS = 512
"""Numbers of state that one program has."""
NO_LIMIT = 20.0
"""Beyond this softplus is the identity in float32."""


@triton.jit
def _kernel(
    x, dt, b, c, z, a, d, dt_bias, state, out, query_start, seq_lens, block_table,
    row_block_tokens, x_stride, dt_stride, b_stride, c_stride, z_stride, state_stride,
    table_stride, channels, size,
    HAS_GATE: tl.constexpr, HAS_BIAS: tl.constexpr, ROUNDS: tl.constexpr, LIMIT: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel, number = tl.program_id(1) * BD + tl.arange(0, BD), tl.arange(0, BS)
    inside, known = channel < channels, number < size
    both = inside[:, None] & known[None, :]
    place = channel[:, None] * size + number[None, :]
    first, count, start = row_tokens(query_start, seq_lens, row)
    block_tokens = tokens_of(row_block_tokens, row, BLOCK_TOKENS)
    source = block_of(block_table, table_stride, row, start - 1, block_tokens)
    has_past = (start > 0) & (count > 0)
    h = tl.load(state + source * state_stride + place, mask=both & has_past, other=0.0)
    h = h.to(tl.float32)
    rates = tl.load(a + place, mask=both, other=0.0)
    skip = tl.load(d + channel, mask=inside, other=0.0)
    bias = tl.zeros((BD,), dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias + channel, mask=inside, other=0.0)
    for i in range(count):
        t = first + i
        raw = tl.load(dt + t * dt_stride + channel, mask=inside, other=0.0).to(tl.float32) + bias
        values = tl.load(x + t * x_stride + channel, mask=inside, other=0.0).to(tl.float32)
        driving = tl.load(b + t * b_stride + number, mask=known, other=0.0).to(tl.float32)
        reading = tl.load(c + t * c_stride + number, mask=known, other=0.0).to(tl.float32)
        small = tl.exp(tl.minimum(raw, LIMIT))
        one_more = 1.0 + small  # ln(1 + small), exact where 1 + small is rounded: Kahan's way
        logarithm = tl.where(
            one_more == 1.0, small, tl.log(one_more) * (small / tl.maximum(one_more - 1.0, 1e-30))
        )
        delta = tl.where(raw > LIMIT, raw, logarithm)
        h = tl.exp(delta[:, None] * rates) * h + (delta * values)[:, None] * driving[None, :]
        made = tl.sum(h * reading[None, :], axis=1) + skip * values
        if HAS_GATE:
            gate = tl.load(z + t * z_stride + channel, mask=inside, other=0.0).to(tl.float32)
            made = made * (gate / (1.0 + tl.exp(-gate)))
        tl.store(out + t * channels + channel, made.to(out.dtype.element_ty), mask=inside)
        if ROUNDS:
            h = nearest_bfloat16(h)
        kept = h.to(state.dtype.element_ty)
        h = kept.to(tl.float32)
        if is_kept(start + i, start + count - 1, block_tokens):
            target = block_of(block_table, table_stride, row, start + i, block_tokens)
            tl.store(state + target * state_stride + place, kept, mask=both)


def run(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor,
    dt_bias: torch.Tensor | None,
    z: torch.Tensor | None,
    state: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    block_tokens: int,
    row_block_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return (c . h + d x) silu(z) (see the op). Rows of x, dt, b, c and z may lie apart.

    Shapes: x, dt, z [T, D], a [D, S], b, c [T, S], d, dt_bias [D], state [N, D, S] -> [T, D].
    Mutates: state
    """
    channels, size = a.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    numbers = triton.next_power_of_2(size)
    some = min(max(1, NUMBERS // numbers), triton.next_power_of_2(channels))
    _kernel[(len(seq_lens), triton.cdiv(channels, some))](
        x, dt, b, c, z, a, d, dt_bias, state, out, query_start, seq_lens, block_table,
        row_block_tokens, x.stride(0), dt.stride(0), b.stride(0), c.stride(0),
        0 if z is None else z.stride(0), state.stride(0), block_table.stride(0), channels, size,
        HAS_GATE=z is not None, HAS_BIAS=dt_bias is not None, ROUNDS=state.dtype == torch.bfloat16,
        LIMIT=NO_LIMIT, BLOCK_TOKENS=block_tokens, BD=some, BS=numbers, num_warps=1,
    )  # fmt: skip
    return out
