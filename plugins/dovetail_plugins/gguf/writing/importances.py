"""Importance matrices: the mean squares of the inputs of a model's matrices, in llama.cpp's files.

A file has, for each matrix NAME, NAME.in_sum2 (the sums of squares of its inputs, one row for each
expert) and NAME.counts (how many tokens came). Source: the GGUF format of
https://github.com/ggml-org/llama.cpp/tree/master/tools/imatrix. Imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.reading.file import GgufModel, TensorExtent, read_model
from dovetail_plugins.gguf.writing.write import Setting, write_file
from dovetail_plugins.quantize.text import WINDOW_TOKENS

KIND = "imatrix"
SUMS, COUNTS = ".in_sum2", ".counts"
WEIGHT = ".weight"
log = logging.getLogger(__name__)


class Importances:
    """Sums of squares and counts by GGUF's name of a matrix, without ".weight"."""

    def __init__(self, path: Path) -> None:
        self._path = path
        model = _read(path)
        tensors = {one.name: one for one in model.extents}
        names = [n.removesuffix(SUMS) for n in tensors if n.endswith(SUMS)]
        self._means = {name.removesuffix(WEIGHT): self._mean(tensors, name) for name in names}
        self.missing: list[str] = []

    def of(self, stem: str, number: int | None, size: int) -> torch.Tensor | None:
        """Return the mean squares of a matrix's inputs, None if the file has none. `number`: the
        expert's. Shapes: -> [size] float32. Raises: ConfigError for another size"""
        means = self._means.get(stem)
        if means is None:
            self.missing.append(stem)
            return None
        row = number or 0
        if means.shape[1] != size or row >= len(means):
            raise ConfigError(
                f"{stem} has {means.shape[1]} inputs of {len(means)} matrices, in the model "
                f"{size} of at least {row + 1}.",
                where=str(self._path),
                fix="use the importance matrix of this model.",
            )
        return means[row] if bool(means[row].any()) else None

    def check_used(self) -> None:
        """Log matrices that the file lacks."""
        if self.missing:
            log.warning(
                "%s has no importances of %d matrices (%s ...); all their inputs count alike.",
                self._path, len(self.missing), self.missing[0],
            )  # fmt: skip

    def _mean(self, tensors: Mapping[str, TensorExtent], name: str) -> torch.Tensor:
        """Return the means of one matrix. Shapes: [experts, inputs]"""
        sums = self._floats(tensors[name + SUMS])
        counts = tensors.get(name + COUNTS)
        if counts is None:
            raise self._fault(f"{name}{COUNTS} is missing")
        number = self._floats(counts)
        if number.numel() != len(sums):
            raise self._fault(f"{name}{COUNTS} has {number.numel()} values, not {len(sums)}")
        means = sums / number.view(-1, 1).clamp(min=1)
        if not bool((means.isfinite() & (means >= 0)).all()):
            raise self._fault(f"{name}{SUMS} has numbers that are negative or not finite")
        return means

    def _floats(self, extent: TensorExtent) -> torch.Tensor:
        if extent.type.name != "F32":
            raise self._fault(f"{extent.name} is {extent.type.name}, not F32")
        with extent.path.open("rb") as file:
            file.seek(extent.start)
            raw = bytearray(file.read(extent.num_bytes))
        return torch.frombuffer(raw, dtype=torch.float32).view(-1, extent.shape[-1])

    def _fault(self, reason: str) -> ConfigError:
        return ConfigError(f"{reason}.", where=str(self._path), fix="make the file again.")


def _read(path: Path) -> GgufModel:
    """Return the head of a file of importances. Raises: ConfigError for another one"""
    if not path.is_file():
        raise ConfigError(
            "there is no such file.", where=f"--imatrix {path}", fix="check the path."
        )
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"GGUF":
        raise ConfigError(
            "it is not a GGUF file.",
            where=f"--imatrix {path}",
            fix="llama-imatrix writes one with --output-format gguf; it converts older files with "
            "--in-file.",
        )
    model = read_model(path)
    if model.settings.get("general.type") != KIND:
        raise ConfigError(
            f"its general.type is {model.settings.get('general.type')!r}, not {KIND!r}.",
            where=f"--imatrix {path}",
            fix="name a file that llama-imatrix or --save-imatrix has written.",
        )
    return model


class Collected:
    """Importances that a calibration text gives, to be written."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[int, tuple[torch.Tensor, int]]] = {}

    def add(self, stem: str, number: int | None, means: torch.Tensor, num_tokens: int) -> None:
        """Add those of one matrix. Shapes: means [I]. Mutates: self"""
        self._sums.setdefault(stem, {})[number or 0] = (means.clone(), num_tokens)

    def write(self, path: Path) -> None:
        """Write the file. Raises: ConfigError when it cannot be"""
        tensors: dict[str, torch.Tensor] = {}
        longest = 0
        for stem, rows in self._sums.items():
            count, size = max(rows) + 1, len(next(iter(rows.values()))[0])
            sums, counts = torch.zeros(count, size), torch.zeros(count, 1)
            for number, (means, num_tokens) in rows.items():
                sums[number], counts[number] = means * num_tokens, float(num_tokens)
                longest = max(longest, num_tokens)
            tensors |= {f"{stem}{WEIGHT}{SUMS}": sums, f"{stem}{WEIGHT}{COUNTS}": counts}
        settings: dict[str, Setting] = {
            "general.type": KIND,
            "imatrix.datasets": ["dovetail quantize --calibration"],
            "imatrix.chunk_count": -(-longest // WINDOW_TOKENS),
            "imatrix.chunk_size": WINDOW_TOKENS,
        }
        write_file(path, settings, tensors)
