"""Chunks of selective_scan and wkv in Triton, interpreted: whose bits they are, cuts, hard numbers.

Whether kernels are interpreted is decided when Triton is imported, so this file is also a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module

import pytest
import torch

from dovetail_kernels.gpu import interprets
from dovetail_kernels.op import Arguments
from dovetail_kernels.states import step_arguments
from support.interpreted_script import AS_WANTED, verify_interpreted

pytest.importorskip("triton")
CPU = torch.device("cpu")
CHANNELS, TOKENS, BLOCK = 5, 146, 48
"""Blocks of 48 tokens have chunks of 32 and 16."""


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Layer:
    """An op with a layer's own arguments, with TOKENS tokens, and what its states are like."""

    name: str
    own: Arguments
    tokens: Arguments
    shape: tuple[int, ...]

    def states(self, blocks: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        made = normal(blocks, *self.shape, seed=8)
        return (made.abs() + 0.5 if self.name == "wkv" else made).to(dtype)

    def run(self, state: torch.Tensor, step: Arguments, some: slice, how: str) -> torch.Tensor:
        tokens = {name: one[some] for name, one in self.tokens.items()}
        function = getattr(import_module(f"dovetail_kernels.{self.name}.{how}"), RUN[how])
        made: torch.Tensor = function(**self.own, **tokens, **step, state=state)
        return made


RUN = {"triton": "run", "reference": "reference"}


def scan() -> Layer:
    x, dt, z = normal(3, TOKENS, CHANNELS, seed=1)
    b, c = normal(2, TOKENS, 4, seed=2)
    d, dt_bias = normal(2, CHANNELS, seed=3)
    own = {"a": -normal(CHANNELS, 4, seed=4).exp(), "d": d, "dt_bias": dt_bias}
    tokens = {"x": x, "dt": dt, "b": b, "c": c, "z": z}
    return Layer("selective_scan", own, tokens, (CHANNELS, 4))


def wkv() -> Layer:
    k, v, r = normal(3, TOKENS, CHANNELS, seed=1)
    own = {"decay": -normal(CHANNELS, seed=2).exp(), "first": normal(CHANNELS, seed=3)}
    return Layer("wkv", own, {"k": k, "v": v, "r": r}, (3, CHANNELS))


def in_steps(
    layer: Layer, cut: Sequence[int], dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Return the results of one row computed in steps, and its states."""
    step, blocks = step_arguments([(0, sum(cut))], BLOCK, CPU)
    state, done, made = layer.states(blocks, dtype), 0, []
    for some in cut:
        step["query_start"] = torch.tensor([0, some], dtype=torch.int32)
        step["seq_lens"] = torch.tensor([done + some], dtype=torch.int32)
        made.append(layer.run(state, step, slice(done, done + some), "triton"))
        done += some
    return [torch.cat(made), state[step["block_table"][0].long()]]


def check_cuts(layer: Layer) -> None:
    """Ends of chunks may be ends of steps to the bit, other places within what is allowed; where
    states have 16 bits any place is to the bit."""
    whole = in_steps(layer, [TOKENS])
    for one, other in zip(in_steps(layer, [80, 66]), whole, strict=True):
        assert torch.equal(one, other), layer.name
    for one, other in zip(in_steps(layer, [3, 1, 142]), whole, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5), layer.name
    whole = in_steps(layer, [70], torch.bfloat16)
    for one, other in zip(in_steps(layer, [33, 37], torch.bfloat16), whole, strict=True):
        assert torch.equal(one, other), layer.name


def check_neighbours(layer: Layer) -> None:
    """A row is its own, beside long and short ones, also where blocks are of each row's size."""
    rows, sizes = [(3, 1), (0, 0), (0, 70), (25, 66), (5, 9)], [1, 48, 48, 20, 48]
    step, blocks = step_arguments(rows, BLOCK, CPU, sizes=sizes)
    kept = layer.states(blocks)
    together = layer.run(kept, step, slice(0, TOKENS), "triton")
    starts = step["query_start"].tolist()
    for row in (0, 2, 3):
        some, state = slice(starts[row], starts[row + 1]), layer.states(blocks)
        names = ("seq_lens", "block_table", "row_block_tokens")
        alone: Arguments = {name: step[name][row : row + 1] for name in names}
        alone["query_start"] = torch.tensor([0, rows[row][1]], dtype=torch.int32)
        made = layer.run(state, alone | {"block_tokens": BLOCK}, some, "triton")
        assert torch.equal(made, together[some]), (layer.name, row)
        used = -(-sum(rows[row]) // sizes[row])
        own = alone["block_table"][0, :used].long()
        assert torch.equal(state[own], kept[own]), (layer.name, row)


def check_against_reference(layer: Layer) -> None:
    """A row that goes on within a chunk, against the definition."""
    step, blocks = step_arguments([(20, TOKENS)], BLOCK, CPU)
    found, wanted = layer.states(blocks), layer.states(blocks)
    every = slice(0, TOKENS)
    pairs = [
        (layer.run(found, step, every, "triton"), layer.run(wanted, step, every, "reference")),
        (found, wanted),
    ]
    for one, other in pairs:
        assert other.isfinite().all()
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4), (one - other).abs().max()


def hard() -> list[Layer]:
    """Channels that forget all at some tokens and nothing at others; keys far apart."""
    one, other = scan(), wkv()
    drops = torch.where(normal(TOKENS, CHANNELS, seed=7) > 1.5, 300.0, -12.0)
    far = other.tokens["k"] * 1000
    slow = torch.tensor([-1e-6, -50.0, -1e-3, -1e4, -1.0])
    return [
        replace(one, tokens=one.tokens | {"dt": drops}),
        replace(other, tokens=other.tokens | {"k": far}, own=other.own | {"decay": slow}),
    ]


def test_they_are_a_rows_own_and_exact() -> None:
    verify_interpreted(__file__, limit_s=300)


def main() -> None:
    assert interprets()
    for layer in (scan(), wkv()):
        check_cuts(layer)
        check_neighbours(layer)
    for layer in hard():
        check_against_reference(layer)
    print(AS_WANTED)


if __name__ == "__main__":
    main()
