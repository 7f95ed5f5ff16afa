"""Cases of paged attention laid out for a backend, with NaN in all that no row may read.

The cases are `dovetail_kernels.paged_attention`'s; the definition is its reference.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    AttentionQuery,
    AttentionSpec,
    BatchLayout,
)
from dovetail_kernels import load_op
from dovetail_kernels.op import Case

OP = load_op("paged_attention")
ONE_SIZE = ("decode_", "prefill_", "mixed_")
CASES = {
    f"{case.name}-{case.dtype}".replace("torch.", ""): case
    for case in OP.cases()
    if case.name.startswith(ONE_SIZE)
}
HEAD_SIZE, BLOCK_TOKENS = 32, 16


def query_of(case: Case, arguments: dict[str, Any]) -> AttentionQuery:
    """Return the query of a case."""
    name = str(case.dtype).removeprefix("torch.")
    return AttentionQuery(
        device=arguments["q"].device.type,
        dtype=name,
        kv_dtype=name,
        head_size=HEAD_SIZE,
        block_tokens=BLOCK_TOKENS,
        uses_window="window" in arguments,
        uses_chunk="chunk" in arguments,
        uses_soft_cap="soft_cap" in arguments,
        uses_sinks="sinks" in arguments,
        uses_alibi="alibi_slopes" in arguments,
        uses_position_bias="bias" in arguments,
        is_causal=arguments.get("is_causal", True),
    )


def fresh_tokens(arguments: dict[str, Any]) -> tuple[torch.Tensor, list[int], list[int]]:
    """Return the slots of the step's tokens, and query_start and seq_lens as lists."""
    starts, lens = arguments["query_start"].tolist(), arguments["seq_lens"].tolist()
    slots = []
    for row, length in enumerate(lens):
        for position in range(length - starts[row + 1] + starts[row], length):
            block = int(arguments["block_table"][row, position // BLOCK_TOKENS])
            slots.append(block * BLOCK_TOKENS + position % BLOCK_TOKENS)
    return torch.tensor(slots, device=arguments["q"].device), starts, lens


class AttentionStep:
    """One case laid out for a backend: the step's own keys are taken out of the cache, so that
    they must come in through k and v; all that no row may see is poisoned."""

    def __init__(self, backend: AttentionBackend, case: Case, device: torch.device) -> None:
        self.case, self.backend = case, backend
        arguments = self.arguments = case.build(device)
        slots, starts, lens = fresh_tokens(arguments)
        self.layout = BatchLayout(
            query_start=arguments["query_start"],
            seq_lens=arguments["seq_lens"],
            block_table=arguments["block_table"],
            slots=slots,
            query_start_host=starts,
            seq_lens_host=lens,
            block_tokens=BLOCK_TOKENS,
            max_query_tokens=max(b - a for a, b in pairwise(starts)),
            max_seq_tokens=max(lens),
        )
        flat = arguments["cache"].view(2, -1, *arguments["cache"].shape[3:])
        self.k, self.v = flat[0, slots].clone(), flat[1, slots].clone()
        slopes = arguments.get("alibi_slopes")
        self.spec = AttentionSpec(
            num_heads=arguments["q"].shape[1],
            num_kv_heads=flat.shape[2],
            head_size=HEAD_SIZE,
            scale=arguments["scale"],
            window_tokens=arguments.get("window"),
            chunk_tokens=arguments.get("chunk"),
            soft_cap=arguments.get("soft_cap"),
            is_causal=arguments.get("is_causal", True),
            alibi_slopes=None if slopes is None else tuple(slopes.tolist()),
        )
        self.cache = self._filled(flat, slots)

    def _filled(self, flat: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return the backend's own cache, filled through the backend with what came before."""
        num_blocks = flat.shape[1] // BLOCK_TOKENS
        shape = self.backend.kv_shape(num_blocks, BLOCK_TOKENS, flat.shape[2], HEAD_SIZE)
        cache = torch.full(shape, float("nan"), dtype=flat.dtype, device=flat.device)
        own = torch.cat([self._row_slots(row) for row in range(len(self.layout.seq_lens_host))])
        past = own[~torch.isin(own, slots)]
        if len(past):
            self._write(cache, flat[0, past], flat[1, past], past)
        return cache

    def _row_slots(self, row: int) -> torch.Tensor:
        length = self.layout.seq_lens_host[row]
        positions = torch.arange(length, device=self.layout.block_table.device)
        blocks = self.layout.block_table[row, positions // BLOCK_TOKENS].long()
        return blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS

    def _write(
        self, cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Let the backend store keys as rows of one token each, whose answers are dropped."""
        count, device = len(slots), slots.device
        layout = BatchLayout(
            query_start=torch.arange(count + 1, dtype=torch.int32, device=device),
            seq_lens=torch.ones(count, dtype=torch.int32, device=device),
            block_table=(slots // BLOCK_TOKENS).int().unsqueeze(1),
            slots=slots,
            query_start_host=list(range(count + 1)),
            seq_lens_host=[1] * count,
            block_tokens=BLOCK_TOKENS,
            max_query_tokens=1,
            max_seq_tokens=1,
        )
        q = torch.zeros(count, self.spec.num_heads, HEAD_SIZE, dtype=k.dtype, device=device)
        prepared = self.backend.prepare(layout)
        self.backend.forward(
            AttentionCall(spec=self.spec, q=q, k=k, v=v, cache=cache, prepared=prepared)
        )

    def call(self, layout: BatchLayout) -> AttentionCall:
        """Return the call of the case's layer for rows of a layout."""
        return AttentionCall(
            spec=self.spec,
            q=self.arguments["q"],
            k=self.k,
            v=self.v,
            cache=self.cache,
            prepared=self.backend.prepare(layout),
            sinks=self.arguments.get("sinks"),
            bias=self.arguments.get("bias"),
        )

    def run(self) -> torch.Tensor:
        """Return the backend's answer."""
        call = self.call(self.layout)
        return (
            self.backend.forward(call) if call.bias is None else self.backend.forward_biased(call)
        )

    def check(self) -> None:
        """Compare with the definition, within the case's tolerance."""
        found = self.run()
        wanted = OP.reference(**self.arguments)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=self.case.rtol, atol=self.case.atol)


def single_token(layout: BatchLayout, position: int) -> BatchLayout:
    """Return the layout of row 0 computing a single position."""
    device = layout.block_table.device
    return BatchLayout(
        query_start=torch.tensor([0, 1], dtype=torch.int32, device=device),
        seq_lens=torch.tensor([position + 1], dtype=torch.int32, device=device),
        block_table=layout.block_table[:1],
        slots=layout.slots[position : position + 1],
        query_start_host=[0, 1],
        seq_lens_host=[position + 1],
        block_tokens=layout.block_tokens,
        max_query_tokens=1,
        max_seq_tokens=position + 1,
    )
