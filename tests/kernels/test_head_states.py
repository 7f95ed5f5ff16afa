"""Mamba 2's recurrence and the gated delta rule as transformers computes them, and lightning
attention by its formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dovetail_kernels import load_op
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.op import Arguments
from dovetail_kernels.states import step_arguments

NATIVE = library()
CPU = torch.device("cpu")
needs_native = pytest.mark.skipif(NATIVE is None, reason=str(missing_reason()))


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one_row(tokens: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, int, Arguments]:
    """Return random states, the block of a row's last token, and the step of that row's tokens."""
    step, num_blocks = step_arguments([(0, tokens)], 256, CPU)
    return normal(num_blocks, *shape, seed=9), int(step["block_table"][0, 0]), step


def compute(name: str, implementation: str, arguments: Arguments) -> torch.Tensor:
    if implementation == "native" and NATIVE is None:
        pytest.skip(str(missing_reason()))
    op = load_op(name)
    function = op.pick("cpu", torch.float32, name=implementation)
    return function(**op.prepare(implementation, arguments))


def agrees(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", ["reference", "native", "chunked"])
def test_ssd_as_transformers_has_it(implementation: str) -> None:
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    x, dt, a = normal(100, 6, 16, seed=1), normal(100, 6, seed=2), -normal(6, seed=3).exp()
    (b, c), (d, bias) = normal(2, 100, 2, 24, seed=4), normal(2, 6, seed=5)
    limit = (0.01, 1.5)
    state, block, step = one_row(100, (6, 16, 24))
    inputs = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "dt_bias": bias, "dt_limit": limit}
    found = compute("ssd", implementation, inputs | {"state": state} | step)
    wanted, last = mamba2.mamba2_chunk_scan(
        x[None], dt[None], a, b[None], c[None], chunk_size=32, D=d, dt_bias=bias,
        dt_softplus=True, dt_limit=limit, return_final_states=True,
    )  # fmt: skip
    assert agrees(found, wanted[0])
    assert agrees(state[block], last[0])


@pytest.mark.parametrize("implementation", ["reference", "native", "chunked"])
def test_the_gated_delta_rule_as_transformers_has_it(implementation: str) -> None:
    qwen3 = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    (q, k), v = normal(2, 100, 2, 24, seed=1), normal(100, 4, 16, seed=2)
    (decay, beta), (a_log, bias) = normal(2, 100, 4, seed=3), normal(2, 4, seed=4)
    state, block, step = one_row(100, (4, 24, 16))
    inputs = {"q": q, "k": k, "v": v, "decay_in": decay, "beta_in": beta, "a_log": a_log}
    inputs |= {"dt_bias": bias, "scale": 24**-0.5, "state": state}
    found = compute("gated_delta", implementation, inputs | step)
    logs = -a_log.exp() * F.softplus(decay + bias)
    for function in (qwen3.torch_recurrent_gated_delta_rule, qwen3.torch_chunk_gated_delta_rule):
        wanted, last = function(
            *(one[None] for one in (q, k, v)), g=logs[None], beta=beta.sigmoid()[None],
            output_final_state=True, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        assert agrees(found, wanted[0])
        assert agrees(state[block], last[0])


@needs_native
def test_lightning_attention_has_no_steps_of_time() -> None:
    """Without dt a token enters whole: a sum over the past, decayed by e^a a token."""
    x, a = normal(30, 2, 5, seed=1), torch.tensor([-0.1, -2.0])
    b, c = normal(2, 30, 2, 7, seed=2)
    state, _, step = one_row(30, (2, 5, 7))
    inputs = {"x": x, "dt": None, "a": a, "b": b, "c": c, "d": None, "dt_bias": None}
    inputs |= {"dt_limit": (0.0, float("inf")), "state": state}
    found = compute("ssd", "native", inputs | step)
    ages = (torch.arange(30).unsqueeze(1) - torch.arange(30)).float()
    decay = (a[:, None, None] * ages).tril().exp().tril()
    wanted = torch.einsum("hij,ihs,jhs,jhp->ihp", decay, c, b, x)
    assert agrees(found, wanted)
