"""A compiled pass: how many graphs, when it is taken, and what happens without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from dovetail.layers.opaque import CompilerBoundary
from dovetail.runner.device import HostDevice
from dovetail.runner.replay.compiled import CompiledForward

TABLE = torch.arange(40.0).view(10, 4)


class Traced(CompiledForward):
    """Runs graphs operator by operator; `speeds` says how much faster they are at some sizes."""

    speeds: dict[int, float]
    fault = ""

    def _compile(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if self.fault:
            raise OSError(self.fault)
        self.num_graphs += 1
        self.code = module.code
        return module.forward

    def _ratio(self, run: Callable[[], torch.Tensor], *, is_captured: bool) -> float:
        return self.speeds[len(run())]


@pytest.fixture
def made() -> tuple[Traced, list[int]]:
    """Return a compiled pass, and the lengths at which its opaque call has run."""
    seen: list[int] = []

    def looked_up(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x.new_tensor(x.tolist()) * 2  # what no compiler could look into

    opaque = CompilerBoundary(looked_up)
    return Traced(
        lambda ids, positions: opaque(TABLE[ids], size=4) + positions.unsqueeze(1), HostDevice()
    ), seen


def inputs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count) % 10, torch.arange(count)


@torch.inference_mode()
def test_two_graphs_serve_all_sizes(made: tuple[Traced, list[int]]) -> None:
    compiled, seen = made
    compiled.speeds = {1: 1.5, 4: 0.9, 16: 2.0}
    compiled.choose({size: partial(compiled, *inputs(size)) for size in compiled.speeds})
    assert compiled.reason is None
    assert compiled.num_graphs == 2
    assert "opaque" in compiled.code
    assert [compiled.takes(size) for size in (1, 2, 4, 5, 16, 99)] == [
        True, False, False, True, True, True,
    ]  # fmt: skip
    seen.clear()
    for count in (1, 3, 7, 16, 33):
        ids, positions = inputs(count)
        wanted = TABLE[ids] * 2 + positions.unsqueeze(1)
        assert torch.equal(compiled(ids, positions), wanted)
    assert seen == [1, 3, 7, 16, 33]
    assert compiled.num_graphs == 2


@torch.inference_mode()
def test_without_a_compiler_the_own_pass_stays(
    made: tuple[Traced, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    compiled, _ = made
    compiled.fault = "no C++ compiler was found"
    with caplog.at_level("WARNING"):
        compiled.choose({size: partial(compiled, *inputs(size)) for size in (1, 4)})
    assert "no C++ compiler" in str(compiled.reason)
    assert "the model runs uncompiled" in caplog.text
    assert not compiled.takes(1)
    assert compiled(*inputs(3)).shape == (3, 4)
