"""AttentionBackend: equals the definition in every case, and reads nothing but a row's own past.

The cases are laid out by `dovetail_testing.attention_cases`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs

from dovetail.interfaces.attention import AttentionBackend
from dovetail_testing import contract
from dovetail_testing.attention_cases import CASES, AttentionStep, query_of, single_token
from dovetail_testing.contract import default_options, requires


def cases_of(rule: str) -> pytest.MarkDecorator:
    """Return a mark that runs a clause over the float32 cases of one rule."""
    found = [n for n in CASES if f"_{rule}_H" in n and n.endswith("float32")]
    return pytest.mark.parametrize("case", found)


def device_of(plugin: Any) -> torch.device:
    """Return a device that the backend runs on. Skips when this machine has none."""
    return torch.device(contract.device_of(plugin))


@pytest.fixture
def backend(plugin: Any) -> AttentionBackend:
    """Return the backend with default options."""
    attention: AttentionBackend = plugin(default_options(plugin))
    return attention


def check(plugin: Any, backend: AttentionBackend, name: str) -> None:
    """Run one case, unless the backend says that it does not fit."""
    device = device_of(plugin)
    case = CASES[name]
    reasons = plugin.why_not(query_of(case, case.build(device)))
    if reasons:
        pytest.skip("; ".join(reasons))
    with torch.inference_mode():
        AttentionStep(backend, case, device).check()


class TestAttentionBackend:
    """Clauses of attention backends. Every case runs with NaN in all that no row may read."""

    kind = "attention_backend"

    @cases_of("plain")
    def test_equals_the_definition(self, plugin: Any, backend: Any, case: str) -> None:
        """Decodes, prefills and chunks in one batch, with grouped heads and without."""
        check(plugin, backend, case)

    @pytest.mark.parametrize("case", [n for n in CASES if not n.endswith("float32")])
    def test_narrow_dtypes(self, plugin: Any, backend: Any, case: str) -> None:
        """float16 and bfloat16, if the backend supports them."""
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
        """Every query sees all keys of its row."""
        check(plugin, backend, case)

    @requires("non_causal")
    @requires("window")
    @cases_of("not_causal_sides")
    def test_window_to_both_sides(self, plugin: Any, backend: Any, case: str) -> None:
        """Without a causal mask a window reaches as far after a query as before it."""
        check(plugin, backend, case)

    @requires("position_bias")
    @cases_of("bias")
    def test_position_bias(self, plugin: Any, backend: Any, case: str) -> None:
        """A number per head and relative position joins each score."""
        check(plugin, backend, case)

    @requires("position_bias")
    @requires("non_causal")
    @cases_of("bias_not_causal")
    def test_position_bias_to_both_sides(self, plugin: Any, backend: Any, case: str) -> None:
        """Keys after a query have separate biases."""
        check(plugin, backend, case)

    @requires("chunk")
    @cases_of("chunk")
    def test_chunk(self, plugin: Any, backend: Any, case: str) -> None:
        """A query sees the keys of the chunk that its position is in, up to that position."""
        check(plugin, backend, case)

    @requires("alibi")
    @cases_of("alibi")
    def test_alibi(self, plugin: Any, backend: Any, case: str) -> None:
        """A head's slope times the distance of the key lowers each score."""
        check(plugin, backend, case)

    @requires("alibi")
    @requires("non_causal")
    @cases_of("alibi_not_causal")
    def test_alibi_to_both_sides(self, plugin: Any, backend: Any, case: str) -> None:
        """Keys after a query are as far away as those before it."""
        check(plugin, backend, case)

    @cases_of("all")
    def test_together(self, plugin: Any, backend: Any, case: str) -> None:
        """Window, soft cap and sinks combined, for backends that claim all three."""
        if not {"window", "soft_cap", "sinks"} <= plugin.capabilities:
            pytest.skip("does not claim all three")
        check(plugin, backend, case)

    def test_writes_its_own_slots_only(self, plugin: Any, backend: Any) -> None:
        """Slots of other tokens keep their bytes."""
        step = AttentionStep(backend, CASES["mixed_plain_H4_K2-float32"], device_of(plugin))
        before = step.cache.clone()
        step.run()
        changed = (step.cache != before) & ~(step.cache.isnan() & before.isnan())
        written = step.k[0].numel() * len(step.k) * 2
        assert 0 < int(changed.sum()) <= written

    def test_row_order_does_not_matter(self, plugin: Any, backend: Any) -> None:
        """Decode rows in reverse order give the same answers in reverse order."""
        device = device_of(plugin)
        step = AttentionStep(backend, CASES["decode_plain_H4_K2-float32"], device)
        found = step.run()
        flipped = replace(
            step.layout,
            seq_lens=step.layout.seq_lens.flip(0),
            block_table=step.layout.block_table.flip(0),
            slots=step.layout.slots.flip(0),
            seq_lens_host=step.layout.seq_lens_host[::-1],
        )
        mirrored = {"q": step.arguments["q"].flip(0), "k": step.k.flip(0), "v": step.v.flip(0)}
        again = backend.forward(structs.replace(step.call(flipped), **mirrored))
        torch.testing.assert_close(again.flip(0), found, rtol=1e-5, atol=1e-5)

    @requires("graphs")
    def test_lengths_are_read_on_the_device(self, plugin: Any, backend: Any) -> None:
        """A decode with the largest lengths on the host gives the same answers."""
        step = AttentionStep(backend, CASES["decode_plain_H4_K2-float32"], device_of(plugin))
        found = step.run()
        layout = step.layout
        max_tokens = layout.block_table.shape[1] * layout.block_tokens
        loose = replace(
            layout, seq_lens_host=[max_tokens] * layout.num_rows, max_seq_tokens=max_tokens
        )
        again = backend.forward(step.call(loose))
        torch.testing.assert_close(again, found, rtol=1e-5, atol=1e-5)

    def test_prefill_then_decode_equals_one_pass(self, plugin: Any, backend: Any) -> None:
        """A row computed token by token equals the row computed in one pass."""
        device = device_of(plugin)
        step = AttentionStep(backend, CASES["prefill_plain_H4_K2-float32"], device)
        whole = step.run()[: step.layout.seq_lens_host[0]]
        step.cache.fill_(float("nan"))
        for position in range(len(whole)):
            layout = single_token(step.layout, position)
            part = slice(position, position + 1)
            own = {"q": step.arguments["q"][part], "k": step.k[part], "v": step.v[part]}
            out = backend.forward(structs.replace(step.call(layout), **own))
            torch.testing.assert_close(out[0], whole[position], rtol=1e-4, atol=1e-4)

    def test_shape_has_the_block_in_front(self, backend: Any) -> None:
        """The first or second axis of the cache is the block."""
        assert 77 in backend.kv_shape(77, 16, 3, 32)[:2]
