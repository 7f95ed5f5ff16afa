"""Value kinds: constants that cross processes, can be compared, and mean something to core."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from dovetail.config.compat.deprecated_flags import NewerFlag
from dovetail.config.config import flags
from dovetail.config.parse.foreign_variables import Row, Setting
from dovetail.interfaces.data.block_hash import BlockHash
from dovetail.interfaces.plugin import Value
from dovetail.parallel.experts import placed_experts
from dovetail.parallel.groups import Group
from dovetail.registry import Entry
from dovetail.registry.files import import_target
from dovetail.registry.kinds import KINDS

BLOCK_TOKENS = 4
HEAD_SIZE, POSITIONS = 16, 64
NUMBERS = {
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": POSITIONS // 2,
    "max_position_embeddings": POSITIONS,
    "short_factor": [1.0] * (HEAD_SIZE // 2),
    "long_factor": [2.0] * (HEAD_SIZE // 2),
}


class ConstantContract:
    """Clauses of every value kind."""

    def test_value_is_a_constant(self, entry: Entry, plugin: Value) -> None:
        """The object is frozen."""
        with pytest.raises(AttributeError):
            plugin.value = None  # type: ignore[misc]


class ValueContract(ConstantContract):
    """Clauses of values that child processes receive."""

    def test_value_crosses_processes(self, entry: Entry, plugin: Value) -> None:
        """The value is plain data: None, text, a number, or a list or dataclass of such."""
        packed = msgspec.msgpack.encode(plugin.value)
        received = msgspec.msgpack.decode(packed, type=type(plugin.value))
        assert received == plugin.value, f"{plugin.value!r} arrives as {received!r}"


class FileImporterContract(ConstantContract):
    """Clauses of what runs files written for another engine, in the process that reads them."""

    def test_it_is_called_with_a_module_and_a_path(self, plugin: Value) -> None:
        """The value is a function of the file's new module and the file's path."""
        assert callable(plugin.value), f"{plugin.value!r} cannot be called"
        inspect.signature(plugin.value).bind(ModuleType("file"), Path("file.py"))


class ForeignVariablesContract(ConstantContract):
    """Clauses of tables of another server's variables, in the process that reads them."""

    def test_each_variable_has_a_meaning(self, entry: Entry, plugin: Value) -> None:
        """Each variable has one of the known meanings; one begins with the server's name."""
        prefix = f"{entry.name.upper()}_"
        assert any(name.startswith(prefix) for name in plugin.value), f"none begins with {prefix}"
        for name, row in plugin.value.items():
            assert isinstance(row, Row), f"{name} has no known meaning: {row!r}"

    def test_settings_read_any_text(self, plugin: Value) -> None:
        """A setting turns a text into fields, or raises ValueError."""
        for name, row in plugin.value.items():
            for text in ("", "1", "auto", "a,b") if isinstance(row, Setting) else ():
                try:
                    fields = row.fields(text)
                except ValueError:
                    continue
                assert isinstance(fields, dict), f"{name}={text!r} gives {fields!r}"


class ForeignFlagsContract(ConstantContract):
    """Clauses of tables of another server's flags, in the process that parses them."""

    def test_each_flag_has_a_meaning(self, plugin: Value) -> None:
        """The table has flags by field name that no flag here is named like, each with a row."""
        assert not set(plugin.value) & set(flags()), "a flag of this name is there"
        for name, newer in plugin.value.items():
            assert isinstance(newer, NewerFlag), f"{name} has no row: {newer!r}"
            assert newer.flag.name == name, f"{name} is named {newer.flag.name}"

    def test_no_value_sets_nothing(self, plugin: Value) -> None:
        """Null is taken, and sets no field."""
        for name, newer in plugin.value.items():
            assert newer.row.fields(None) == {}, f"{name}: null sets a field"


class HashContract(ValueContract):
    """Clauses of hashes of KV blocks."""

    def test_hashes_tell_blocks_apart(self, plugin: Value) -> None:
        """Equal blocks under one key have equal hashes of 16 bytes or more, all others differ."""
        block_hash = import_target(plugin.value)
        assert isinstance(block_hash, BlockHash), f"{plugin.value} is not a BlockHash"
        encode = block_hash.encode(BLOCK_TOKENS)
        blocks = [[1, 2, 3, 4], [1, 2, 3, 5], [0, 0, 0, 0], [1 << 40, 2, 3, 4]]
        texts = [encode(parent, block) for parent in (b"a" * 32, b"b" * 32) for block in blocks]
        found = {block_hash.digest(key, text) for key in (b"one", b"two") for text in texts}
        assert len(found) == 2 * len(texts), "two different blocks have one hash"
        assert min(map(len, found)) >= 16, "a hash has fewer than 16 bytes"
        assert block_hash.digest(b"one", texts[0]) in found, "one block has two hashes"


class ExpertPlacementContract(ValueContract):
    """Clauses of placements of experts."""

    @pytest.mark.parametrize(("experts", "ranks"), [(1, 1), (8, 1), (8, 2), (60, 4), (256, 64)])
    def test_each_expert_is_on_one_rank(self, plugin: Value, experts: int, ranks: int) -> None:
        """Every rank gets as many experts, and every expert is on one rank, twice the same."""
        placement = import_target(plugin.value)
        group = Group(size=ranks)
        placed = placed_experts(plugin.value, experts, 0, group)
        assert placed == placed_experts(plugin.value, experts, 0, group), (
            "it differs the second time"
        )
        assert len(placement(experts, ranks)) == ranks


class RopeContract(ValueContract):
    """Clauses of rules of rotary embeddings."""

    def test_frequencies_fit_a_head(self, plugin: Value) -> None:
        """The rule gives a positive angle for each pair of a head, and a factor above zero."""
        from dovetail.layers.attention.rotary import RopeSettings

        rule = import_target(plugin.value)
        settings = RopeSettings(
            rule="checked",
            frequencies=rule,
            theta=10000.0,
            size=HEAD_SIZE,
            trained_positions=POSITIONS // 2,
            served_positions=POSITIONS,
            values=NUMBERS,
        )
        angles, scale = rule(settings)
        wanted = (HEAD_SIZE // 2,)
        assert tuple(angles.shape) == wanted, f"the shape is {tuple(angles.shape)}, not {wanted}"
        assert bool((angles > 0).all() and angles.isfinite().all()), "an angle is not above 0"
        assert scale > 0, f"the factor is {scale}"


_OWN_CLAUSES: dict[str, type[ConstantContract]] = {
    "expert_placement": ExpertPlacementContract,
    "file_importer": FileImporterContract,
    "foreign_flags": ForeignFlagsContract,
    "foreign_variables": ForeignVariablesContract,
    "hash_algorithm": HashContract,
    "rope_type": RopeContract,
}
for _kind in (kind for kind in KINDS.values() if kind.is_value):
    _name = f"Test_{_kind.name}"
    _base = _OWN_CLAUSES.get(_kind.name, ValueContract)
    globals()[_name] = type(_name, (_base,), {"kind": _kind.name})
