"""InputSquares: the mean squares of the inputs of a checkpoint's linear layers, from a text.

The text runs through the model in full precision, block by block, when the first layer asks; blocks
that a weight cache restores never do. Imports torch.
"""

from __future__ import annotations

import logging
import re
import time
from functools import cached_property

import torch

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.layers.stored.layer_names import fused_parts
from dovetail_plugins.quantize.calibration import Calibration
from dovetail_plugins.quantize.source import CheckpointSource
from dovetail_plugins.quantize.text import windows_of

EXPERT = re.compile(r"\.experts\.\d+\.")
ANY_EXPERT = ".experts.0."
"""Experts share what is known of their inputs."""
WEIGHT = ".weight"
OPTION = "--plugin-options.quantization.calibration"
log = logging.getLogger(__name__)


class InputSquares:
    """What a text tells about the inputs of one rank's layers."""

    def __init__(self, run: RunSpec, path: str, num_tokens: int) -> None:
        self._run, self._path, self._num_tokens = run, path, num_tokens

    def of(self, spec: LinearSpec) -> torch.Tensor | None:
        """Return the mean squares of a layer's inputs, None where the text says nothing.

        Shapes: -> [I] float32. Raises: ConfigError for a text or a model that cannot be used
        """
        name = next(iter(fused_parts(spec.name)), spec.name)
        squares = self._means.get(EXPERT.sub(ANY_EXPERT, name))
        if squares is None:
            return None
        first = self._run.rank.tensor_rank * spec.in_size if spec.is_input_divided else 0
        own = squares[first : first + spec.in_size]
        assert len(own) == spec.in_size, f"{name}: {len(squares)} inputs, not {spec.in_size}"
        return own if bool(own.any()) else None

    @cached_property
    def _means(self) -> dict[str, torch.Tensor]:
        """Return the mean squares by the checkpoint's name of a layer."""
        start_s = time.perf_counter()
        windows = self._windows()
        walk = Calibration(self._run.model, CheckpointSource(self._run), windows, only_squares=True)
        sums: dict[str, torch.Tensor] = {}
        counts: dict[str, int] = {}
        for number in range(len(walk.names)):
            block = walk.measure(number)
            names = walk.stored_names(number)
            for layer, inputs in block.inputs.items():
                name = EXPERT.sub(ANY_EXPERT, names[layer + WEIGHT].removesuffix(WEIGHT))
                found = inputs.gram * inputs.num_tokens
                sums[name] = sums[name] + found if name in sums else found
                counts[name] = counts.get(name, 0) + inputs.num_tokens
            walk.advance(number, block.tensors)
        log.info("calibrated with %d tokens in %.1f s", windows.numel(),
                 time.perf_counter() - start_s)  # fmt: skip
        return {name: total / max(1, counts[name]) for name, total in sums.items()}

    def _windows(self) -> torch.Tensor:
        """Return the text's tokens. Shapes: [S, L]. Raises: ConfigError"""
        model = self._run.model
        try:
            tokenizer = registry.make(
                registry.choose("tokenizer", "auto", query=model.path, options={}, where=OPTION),
                model.path,
            )
            return windows_of(
                self._path,
                tokenizer,
                num_tokens=self._num_tokens,
                longest_tokens=model.max_position_tokens,
            )
        except ConfigError as error:
            raise ConfigError(f"{self._path}: {error.what}", where=OPTION, fix=error.fix) from error
