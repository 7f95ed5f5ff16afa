"""Parts: which features a run of the runner has, in order, and how they are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import numpy as np
import torch

from dovetail.interfaces.data.spec import RunSpec
from dovetail.runner.device import DeviceCalls
from dovetail.runner.drafts.runner import DraftRunner
from dovetail.runner.endings.constraints import RowConstraints
from dovetail.runner.endings.drawing import DrawingEnd
from dovetail.runner.endings.pooling import PoolingEnd
from dovetail.runner.endings.stage_link import HandOnEnd, StageLink
from dovetail.runner.experts.balancer import ExpertBalancer
from dovetail.runner.experts.exchange import ExpertExchange
from dovetail.runner.kv.block_transfer import BlockTransfers
from dovetail.runner.kv.host_blocks import SwappedBlocks
from dovetail.runner.lora.runner_adapters import RunnerAdapters
from dovetail.runner.media.runner_media import RunnerMedia
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.step.part import Ending, RunnerPart

Around = AbstractContextManager[None]
P = TypeVar("P", bound=RunnerPart)


def ending_of(run: RunSpec, device: torch.device, calls: DeviceCalls) -> Ending:
    """Return what becomes of the hidden states on this rank."""
    if not run.rank.is_last_stage:
        return HandOnEnd()
    if run.pooling is not None:
        return PoolingEnd(run.pooling, device)
    return DrawingEnd(run, device, calls)


def parts_of(
    run: RunSpec, device: torch.device, calls: DeviceCalls, ending: Ending
) -> list[RunnerPart]:
    """Return the parts of a run in the order in which they are called."""
    parts: list[RunnerPart] = [ending]
    if run.expert_placement:
        parts.append(ExpertBalancer(run))
    if isinstance(ending, DrawingEnd) and run.structured_output is not None:
        parts.append(RowConstraints(run.structured_output, run, ending))
    parts.append(RunnerMedia(run, device, calls, ending))
    if isinstance(ending, DrawingEnd) and run.drafts is not None:
        parts.append(DraftRunner(run.drafts, run, device, ending))
    parts.append(SwappedBlocks())
    if run.transfer is not None:
        parts.append(BlockTransfers(run, run.transfer))
    if run.adapters is not None:
        parts.append(RunnerAdapters(run.adapters, run, device))
    if run.rank.data_size > 1:
        parts.append(ExpertExchange(run, device))
    if run.rank.num_stages > 1:
        parts.append(StageLink(run, device))
    return parts


class Parts(list[RunnerPart]):
    """The parts of a runner, in order."""

    def of(self, kind: type[P]) -> P:
        """Return the part of a class, which the run has."""
        return next(part for part in self if isinstance(part, kind))

    def around(self, inputs: StepInputs) -> Around:
        """Return what surrounds the forward pass of a step, or of half a step."""
        return _together([one for part in self if (one := part.around(inputs))])

    def around_rows(self, row: int | np.ndarray, count: int) -> Around:
        """Return what surrounds the use of rows' vectors (see RunnerPart)."""
        return _together([one for part in self if (one := part.around_rows(row, count))])


def _together(managers: Sequence[Around]) -> Around:
    """Return one with block for several."""
    if not managers:
        return nullcontext()
    return managers[0] if len(managers) == 1 else _nested(managers)


@contextmanager
def _nested(managers: Sequence[Around]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
