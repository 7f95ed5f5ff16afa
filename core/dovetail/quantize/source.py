"""Source: the full-precision checkpoint, as often as it is asked for. Keeps no weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import msgspec
import torch

from dovetail.interfaces.load_format import LoadFormat
from dovetail.interfaces.spec import RunSpec
from dovetail.runner.loader import build_plugin, reading


class Source:
    """The tensors of a checkpoint, read anew each time; lazy formats read only what is used."""

    def __init__(self, run: RunSpec) -> None:
        self._run = msgspec.structs.replace(run, shows_progress=False)
        self._format = cast(LoadFormat, build_plugin(run.load_format))
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, in the order of the files."""
        with reading(self._run, torch.device("cpu"), None) as checkpoint:
            yield from self._format.tensors(checkpoint)

    def those(self, is_wanted: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """Return copies of some tensors by name."""
        return {name: tensor.clone() for name, tensor in self.tensors() if is_wanted(name)}
