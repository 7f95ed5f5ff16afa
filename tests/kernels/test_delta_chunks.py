"""Chunks of gated_delta in Triton, interpreted: whose bits they are, cuts, and hard numbers.

Whether kernels are interpreted is decided when Triton is imported, so this file is also a script.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail_kernels.gated_delta.reference import reference
from dovetail_kernels.gpu import interprets
from dovetail_kernels.op import Arguments
from dovetail_kernels.states import step_arguments
from support.interpreted_script import AS_WANTED, verify_interpreted
from support.samples import sample_of

pytest.importorskip("triton")
CPU = torch.device("cpu")
HEADS, KEYS, VALUES, CHUNK = 1, 16, 20, 64
TOKENS = 200


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(*, by_channel: bool, dtype: torch.dtype = torch.float16) -> Arguments:
    """Return a layer's own arguments, and TOKENS tokens."""
    decays = (HEADS, KEYS) if by_channel else (HEADS,)
    (q, k), v = normal(2, TOKENS, 1, KEYS, seed=1), normal(TOKENS, HEADS, VALUES, seed=2)
    tokens = {"q": q, "k": k, "v": v, "beta_in": normal(TOKENS, HEADS, seed=3)}
    tokens["decay_in"] = normal(TOKENS, *decays, seed=4)
    own = {"a_log": normal(HEADS, seed=5), "dt_bias": normal(*decays, seed=6), "scale": 0.25}
    return {name: one.to(dtype) for name, one in tokens.items()} | own


def some_of(arguments: Arguments, some: slice) -> Arguments:
    own = ("a_log", "dt_bias", "scale", "least_log")
    return {name: one if name in own else one[some] for name, one in arguments.items()}


def states(blocks: int) -> torch.Tensor:
    return normal(blocks, HEADS, KEYS, VALUES, seed=8)


def run(arguments: Arguments, step: Arguments, state: torch.Tensor) -> torch.Tensor:
    from dovetail_kernels.gated_delta import triton

    made: torch.Tensor = triton.run(**arguments, **step, state=state)
    return made


def in_steps(arguments: Arguments, cut: list[int], block_tokens: int) -> list[torch.Tensor]:
    """Return the results of one row computed in steps, and its states."""
    step, blocks = step_arguments([(0, TOKENS)], block_tokens, CPU)
    state, done, made = states(blocks), 0, []
    for some in cut:
        step["query_start"] = torch.tensor([0, some], dtype=torch.int32)
        step["seq_lens"] = torch.tensor([done + some], dtype=torch.int32)
        made.append(run(some_of(arguments, slice(done, done + some)), step, state))
        done += some
    return [torch.cat(made), state[step["block_table"][0].long()]]


def check_cuts() -> None:
    """Ends of chunks may be ends of steps to the bit, other places within what is allowed."""
    layers = ((True, 256), (False, 96), (False, 256))
    for by_channel, block_tokens in layers[: sample_of(3, 2)]:
        arguments = layer(by_channel=by_channel)
        whole = in_steps(arguments, [TOKENS], block_tokens)
        ends = [CHUNK, CHUNK, 72] if block_tokens == 256 else [96, 64, 40]
        for one, other in zip(in_steps(arguments, ends, block_tokens), whole, strict=True):
            assert torch.equal(one, other), (by_channel, block_tokens)
        for cut in ([37, 163], [1, 99, 100])[: sample_of(2, 1)]:
            for one, other in zip(in_steps(arguments, cut, block_tokens), whole, strict=True):
                assert torch.allclose(one, other, rtol=1e-3, atol=1e-3), (by_channel, cut)


def check_neighbours() -> None:
    """A row is its own, beside long and short ones, also where blocks are of each row's size."""
    rows = [(3, 1), (0, 70), (40, 33), (0, 0), (10, 45), (5, 31)]
    sizes = [1, 96, 96, 96, 20, 96]
    arguments = some_of(layer(by_channel=False), slice(0, sum(here for _, here in rows)))
    step, blocks = step_arguments(rows, 96, CPU, sizes=sizes)
    together, kept = (run(arguments, step, state := states(blocks)), state)
    starts = step["query_start"].tolist()
    for row, (_, here) in enumerate(rows):
        some, state = slice(starts[row], starts[row + 1]), states(blocks)
        alone = {name: step[name][row : row + 1] for name in ("seq_lens", "block_table")}
        alone["row_block_tokens"] = step["row_block_tokens"][row : row + 1]
        alone["query_start"] = torch.tensor([0, here], dtype=torch.int32)
        if here:
            made = run(some_of(arguments, some), alone | {"block_tokens": 96}, state)
            assert torch.equal(made, together[some]), row
            own = alone["block_table"][0].long()
            assert torch.equal(state[own[0]], kept[own[0]]), row


def check_hard_numbers() -> None:
    """One key again and again, which nothing forgets; channels that forget all at one token."""
    alike = layer(by_channel=False, dtype=torch.float32)
    alike["q"], alike["k"] = (alike[name][:1].expand(TOKENS, -1, -1) for name in "qk")
    alike["beta_in"], alike["decay_in"] = (torch.full((TOKENS, HEADS), x) for x in (9.0, -30.0))
    drops = layer(by_channel=True, dtype=torch.float32)
    drops["decay_in"] = torch.where(normal(TOKENS, HEADS, KEYS, seed=7) > 1.5, 90.0, -9.0)
    bounded = drops | {"least_log": -5.0}
    for name, arguments in (("alike", alike), ("drops", drops), ("bounded", bounded)):
        step, blocks = step_arguments([(40, TOKENS)], 256, CPU)
        found, wanted = states(blocks), states(blocks)
        results: list[tuple[Any, Any]] = [
            (run(arguments, step, found), reference(**arguments, **step, state=wanted)),
            (found, wanted),
        ]
        for one, other in results:
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-4), (
                name,
                (one - other).abs().max(),
            )


def test_they_are_a_rows_own_and_exact() -> None:
    verify_interpreted(__file__, limit_s=300)


def main() -> None:
    assert interprets()
    check_cuts()
    check_neighbours()
    check_hard_numbers()
    print(AS_WANTED)


if __name__ == "__main__":
    main()
