"""AttentionBackend: equals the definition in every case, and reads nothing but a row's own past.

The cases are those of `dovetail_kernels.paged_attention`; the definition is its reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail.interfaces.attention import AttentionBackend, AttentionQuery, AttentionSpec, BatchLayout
from dovetail.testing.contract import default_options, requires
from dovetail_kernels import load_op
from dovetail_kernels.op import Case

OP = load_op("paged_attention")
CASES = {f"{c.name}-{c.dtype}".replace("torch.", ""): c for c in OP.cases()}
HEAD_SIZE, BLOCK_TOKENS = 32, 16


def cases_of(rule: str) -> Any:
    """Return a mark that runs a clause over the float32 cases of one rule."""
    found = [n for n in CASES if f"_{rule}_H" in n and n.endswith("float32")]
    return pytest.mark.parametrize("case", found)


def device_of(plugin: Any) -> torch.device:
    """Return a device that the backend runs on. Skips when this machine has none."""
    devices = plugin.info.devices or ("cpu",)
    if "cpu" in devices:
        return torch.device("cpu")
    if "cuda" in devices and torch.cuda.is_available():
        return torch.device("cuda")
    pytest.skip(f"not run here: needs one of {', '.join(devices)}")


def query_of(case: Case, arguments: dict[str, Any]) -> AttentionQuery:
    """Return what a case asks of a backend."""
    name = str(case.dtype).removeprefix("torch.")
    return AttentionQuery(
        device=arguments["q"].device.type,
        dtype=name,
        kv_dtype=name,
        head_size=HEAD_SIZE,
        block_tokens=BLOCK_TOKENS,
        uses_window="window" in arguments,
        uses_soft_cap="soft_cap" in arguments,
        uses_sinks="sinks" in arguments,
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


class Step:
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
            max_query_tokens=max(b - a for a, b in zip(starts, starts[1:], strict=False)),
            max_seq_tokens=max(lens),
        )
        flat = arguments["cache"].view(2, -1, *arguments["cache"].shape[3:])
        self.k, self.v = flat[0, slots].clone(), flat[1, slots].clone()
        self.spec = AttentionSpec(
            num_heads=arguments["q"].shape[1],
            num_kv_heads=flat.shape[2],
            head_size=HEAD_SIZE,
            scale=arguments["scale"],
            window_tokens=arguments.get("window"),
            soft_cap=arguments.get("soft_cap"),
            is_causal=arguments.get("is_causal", True),
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
        self.backend.forward(self.spec, q, k, v, cache, self.backend.prepare(layout))

    def run(self) -> torch.Tensor:
        """Return the backend's answer."""
        return self.backend.forward(
            self.spec,
            self.arguments["q"],
            self.k,
            self.v,
            self.cache,
            self.backend.prepare(self.layout),
            self.arguments.get("sinks"),
        )

    def check(self) -> None:
        """Compare with the definition, within the case's tolerance."""
        found = self.run()
        wanted = OP.reference(**self.arguments)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=self.case.rtol, atol=self.case.atol)


@pytest.fixture
def backend(plugin: Any) -> AttentionBackend:
    """Return the backend with default options."""
    made: AttentionBackend = plugin(default_options(plugin))
    return made


def check(plugin: Any, backend: AttentionBackend, name: str) -> None:
    """Run one case, unless the backend says that it does not fit."""
    device = device_of(plugin)
    case = CASES[name]
    reasons = plugin.why_not(query_of(case, case.build(device)))
    if reasons:
        pytest.skip("; ".join(reasons))
    with torch.inference_mode():
        Step(backend, case, device).check()


class TestAttentionBackend:
    """Clauses of attention backends. Every case runs with NaN in all that no row may read."""

    kind = "attention_backend"

    @cases_of("plain")
    def test_equals_the_definition(self, plugin: Any, backend: Any, case: str) -> None:
        """Decodes, prefills and chunks in one batch, with grouped heads and without."""
        check(plugin, backend, case)

    @pytest.mark.parametrize("case", [n for n in CASES if not n.endswith("float32")])
    def test_narrow_dtypes(self, plugin: Any, backend: Any, case: str) -> None:
        """float16 and bfloat16, where the backend takes them."""
        check(plugin, backend, case)

    @requires("window")
    @cases_of("window")
    def test_window(self, plugin: Any, backend: Any, case: str) -> None:
        """A query sees the last w keys, itself included."""
        check(plugin, backend, case)

    @requires("soft_cap")
    @cases_of("soft_cap")
    def test_soft_cap(self, plugin: Any, backend: Any, case: str) -> None:
        """Scores are capped before the softmax."""
        check(plugin, backend, case)

    @requires("sinks")
    @cases_of("sinks")
    def test_sinks(self, plugin: Any, backend: Any, case: str) -> None:
        """One learned logit per head joins the denominator."""
        check(plugin, backend, case)

    @requires("non_causal")
    @cases_of("not_causal")
    def test_non_causal(self, plugin: Any, backend: Any, case: str) -> None:
        """Every query sees all keys of its own row."""
        check(plugin, backend, case)

    @cases_of("all")
    def test_together(self, plugin: Any, backend: Any, case: str) -> None:
        """Window, soft cap and sinks at once, for backends that claim all three."""
        if not {"window", "soft_cap", "sinks"} <= plugin.capabilities:
            pytest.skip("does not claim all three")
        check(plugin, backend, case)

    def test_writes_its_own_slots_only(self, plugin: Any, backend: Any) -> None:
        """Slots of other tokens keep their bytes."""
        step = Step(backend, CASES["mixed_plain_H4_K2-float32"], device_of(plugin))
        before = step.cache.clone()
        step.run()
        changed = (step.cache != before) & ~(step.cache.isnan() & before.isnan())
        written = step.k[0].numel() * len(step.k) * 2
        assert 0 < int(changed.sum()) <= written

    def test_row_order_does_not_matter(self, plugin: Any, backend: Any) -> None:
        """Decode rows in reverse order give the same answers in reverse order."""
        device = device_of(plugin)
        step = Step(backend, CASES["decode_plain_H4_K2-float32"], device)
        found = step.run()
        flipped = replace(
            step.layout,
            seq_lens=step.layout.seq_lens.flip(0),
            block_table=step.layout.block_table.flip(0),
            slots=step.layout.slots.flip(0),
            seq_lens_host=step.layout.seq_lens_host[::-1],
        )
        again = backend.forward(
            step.spec,
            step.arguments["q"].flip(0),
            step.k.flip(0),
            step.v.flip(0),
            step.cache,
            backend.prepare(flipped),
        )
        torch.testing.assert_close(again.flip(0), found, rtol=1e-5, atol=1e-5)

    def test_prefill_then_decode_equals_one_pass(self, plugin: Any, backend: Any) -> None:
        """A row computed token by token equals the row computed at once."""
        device = device_of(plugin)
        step = Step(backend, CASES["prefill_plain_H4_K2-float32"], device)
        whole = step.run()[: step.layout.seq_lens_host[0]]
        step.cache.fill_(float("nan"))
        for position in range(len(whole)):
            layout = _single(step.layout, position)
            part = slice(position, position + 1)
            out = backend.forward(
                step.spec,
                step.arguments["q"][part],
                step.k[part],
                step.v[part],
                step.cache,
                backend.prepare(layout),
            )
            torch.testing.assert_close(out[0], whole[position], rtol=1e-4, atol=1e-4)

    def test_shape_has_the_block_in_front(self, backend: Any) -> None:
        """The first or second axis of the cache is the block."""
        assert 77 in backend.kv_shape(77, 16, 3, 32)[:2]


def _single(layout: BatchLayout, position: int) -> BatchLayout:
    """Return the layout of row 0 computing one position alone."""
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
