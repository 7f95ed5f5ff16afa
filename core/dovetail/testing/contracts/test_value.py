"""Value kinds: constants that cross processes and can be compared."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.interfaces.plugin import Value
from dovetail.registry import Entry
from dovetail.registry.kinds import KINDS


class ValueContract:
    """Clauses of every value kind."""

    def test_value_crosses_processes(self, entry: Entry, plugin: Value) -> None:
        """The value is plain data: None, text, a number, or a list or dataclass of such."""
        packed = msgspec.msgpack.encode(plugin.value)
        assert msgspec.msgpack.decode(packed, type=type(plugin.value)) == plugin.value

    def test_value_is_a_constant(self, entry: Entry, plugin: Value) -> None:
        """The object is frozen."""
        with pytest.raises(AttributeError):
            plugin.value = plugin.value  # type: ignore[misc]


for _kind in (kind for kind in KINDS.values() if kind.is_value):
    _name = f"Test_{_kind.name}"
    globals()[_name] = type(_name, (ValueContract,), {"kind": _kind.name})
