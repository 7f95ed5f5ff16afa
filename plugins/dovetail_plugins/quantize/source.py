"""CheckpointSource: the full-precision checkpoint, readable repeatedly. It caches no weights.

Every matrix is [O, I], also for families that store inputs first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import torch

from dovetail import registry
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.load_format import LoadFormat
from dovetail.runner.load.loader import reading


class CheckpointSource:
    """The tensors of a checkpoint, read again each time; lazy formats read only what is used."""

    def __init__(self, run: RunSpec) -> None:
        self._run = msgspec.structs.replace(run, shows_progress=False)
        self._format = cast(LoadFormat, registry.make(run.load_format))
        self._turned = facts_of(run.model.hf_config).stores_inputs_first
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, in the order of the files."""
        with reading(self._run, torch.device("cpu"), None) as checkpoint:
            for name, tensor in self._format.tensors(checkpoint):
                yield name, self.turned(name, tensor)

    def turned(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor transposed, between [I, O] and [O, I], if the family stores it inputs
        first; others unchanged."""
        is_turned = bool(self._turned) and name.endswith(self._turned)
        return tensor.t().contiguous() if is_turned else tensor

    def those(self, is_wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """Return copies of some tensors by name."""
        return {name: tensor.clone() for name, tensor in self.tensors() if is_wanted(name)}
