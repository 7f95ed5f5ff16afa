"""A fake device on a CPU, with graphs and a host ahead of it: for tests of runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.runner.device import Graph, HostDevice
from dovetail_testing.reference import ReferenceAttention


class FakeGraph:
    """Runs the captured function again, and puts what it returns where it lay the first time."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def capture(self, function: Callable[[], torch.Tensor]) -> None:
        if self._device.fails_to_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        self._function = function
        self._result = function()

    def replay(self) -> torch.Tensor:
        self._device.num_replays += 1
        return self._result.copy_(self._function())


class FakeDevice(HostDevice):
    """A CPU that claims to run behind the host."""

    runs_ahead = True

    def __init__(self, *, fails_to_capture: bool = False) -> None:
        self.num_replays = 0
        self.fails_to_capture = fails_to_capture

    def graph(self) -> Graph | None:
        return FakeGraph(self)


class CapturableReference(ReferenceAttention):
    """The reference, told of lengths by tensors alone, as a captured step is."""

    capabilities = ReferenceAttention.capabilities | {"graphs"}

    def prepare(self, layout: BatchLayout) -> Any:
        if layout.max_query_tokens > 1:
            return layout
        lengths = layout.seq_lens.tolist()
        assert max(lengths) <= layout.max_seq_tokens, "launched for shorter rows than there are"
        return replace(layout, seq_lens_host=lengths)


CAPTURABLE = Selection(
    kind="attention_backend", name="capturable", target=f"{__file__}:CapturableReference"
)


class NoRepeat(LogitsProcessor):
    """Bans the last drawn token: what it does depends on what the host knows."""

    info = Info(summary="test processor: no token twice in a row")
    stage = "ban"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self.outputs: dict[int, Sequence[int]] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        return params.presence_penalty == 0.125

    def add_row(self, tokens: RowTokens) -> None:
        self.outputs[tokens.row] = tokens.output_ids

    def remove_row(self, row: int) -> None:
        self.outputs.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        for index, row in rows:
            if self.outputs[row]:
                logits[index, self.outputs[row][-1]] = -torch.inf


NO_REPEAT = Selection(kind="logits_processor", name="no_repeat", target=f"{__file__}:NoRepeat")
