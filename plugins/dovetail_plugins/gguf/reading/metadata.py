"""A GGUF file's settings, each checked for its kind. Imports no torch."""

from __future__ import annotations

import struct
from typing import Any

from dovetail.errors import ConfigError
from dovetail_plugins.gguf.reading.file import GgufModel, TensorExtent
from dovetail_plugins.gguf.reading.older import size_of

_MAX_FACTORS = 4096


class Settings:
    """The settings of a file by name, each checked for its kind."""

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self._values = model.settings
        self.architecture = str(self._values.get("general.architecture", ""))

    def find(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Return a setting or None; names of the architecture's own begin with a dot. Some sizes
        that a file lacks are those of its tensors.

        Raises: ConfigError when it is of another kind.
        """
        key = f"{self.architecture}{name}" if name.startswith(".") else name
        value = self._values.get(key)
        if value is None:
            value = size_of(self, name)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        is_switch = isinstance(value, bool) and bool not in kinds
        if value is not None and (is_switch or not isinstance(value, kind)):
            raise ConfigError(f"{key} is {value!r}"[:200], where=str(self.model.path))
        return _shortest(value) if isinstance(value, float) else value

    def number(self, name: str) -> int:
        """Return a count that is one for all layers. Raises: ConfigError when there is none."""
        value = self.find(name, (int, list))
        if isinstance(value, list):
            value = value[0] if value and len({*map(str, value)}) == 1 else None
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise ConfigError(
                f"{self.architecture}{name} is missing, not positive, or differs between layers.",
                where=str(self.model.path),
            )
        return value

    def per_block(self, name: str) -> list[int]:
        """Return a count of every block. Raises: ConfigError when it is not one for each."""
        value, count = self.find(name, (int, list)), self.number(".block_count")
        values = [value] * count if isinstance(value, int) else value or []
        if len(values) != count or not all(isinstance(one, int) and one >= 0 for one in values):
            raise ConfigError(
                f"{self.architecture}{name} is not a count for each of {count} blocks.",
                where=str(self.model.path),
            )
        return values

    def per_layer(self, name: str) -> list[float]:
        """Return a real number of every block. Raises: ConfigError when it is not one for each."""
        value, count = self.find(name, (float, list)), self.number(".block_count")
        values = [value] * count if isinstance(value, float) else value or []
        if len(values) != count or not all(isinstance(one, float) for one in values):
            raise ConfigError(
                f"{name} is not a number for each of {count} blocks.", where=str(self.model.path)
            )
        return values

    def largest(self, name: str) -> int:
        """Return the largest of the blocks' counts, some of which may be 0. Raises: ConfigError"""
        found = max(self.per_block(name))
        if found <= 0:
            raise ConfigError(
                f"{self.architecture}{name} is {found}, and some block must have more.",
                where=str(self.model.path),
            )
        return found

    def has(self, name: str) -> bool:
        """Return whether any block has a tensor, by its name without "blk.N."."""
        return bool(self.blocks_with(name))

    def blocks_with(self, name: str) -> list[int]:
        """Return the blocks that have a tensor, by its name without "blk.N."."""
        parts = (one.name.split(".", 2) for one in self.model.extents)
        blocks = (p[1] for p in parts if len(p) == 3 and p[0] == "blk" and p[2] == name)
        return sorted(int(number) for number in blocks if number.isdecimal())

    def first(self, name: str) -> TensorExtent | None:
        """Return the extent of a tensor in the first block that has it."""
        blocks = self.blocks_with(name)
        return self.tensor(f"blk.{blocks[0]}.{name}") if blocks else None

    def tensor(self, name: str) -> TensorExtent | None:
        """Return the extent of a tensor."""
        return next((one for one in self.model.extents if one.name == name), None)

    def factors(self, name: str) -> list[float] | None:
        """Return a short float tensor's numbers, None if there is no such tensor."""
        extent = self.tensor(name)
        if extent is None:
            return None
        if extent.type.name != "F32" or extent.num_bytes > 4 * _MAX_FACTORS:
            raise ConfigError(
                f"{name} is not a list of at most {_MAX_FACTORS} float32 numbers.",
                where=str(extent.path),
            )
        with extent.path.open("rb") as file:
            file.seek(extent.start)
            return list(struct.unpack(f"<{extent.num_bytes // 4}f", file.read(extent.num_bytes)))


def _shortest(value: float) -> float:
    """Return the number with the fewest digits that is the same in float32: 1e-5, not its rounded
    value. Others, stored in 64 bits, are unchanged."""
    for digits in range(6, 10):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack("<f", struct.pack("<f", short))[0] == value:
                return short
        except OverflowError:
            return value
    return value
