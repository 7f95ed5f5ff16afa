"""The registry of this process, which resolves a name to a plugin class, as functions.

`entries`, `names`, `find` read only metadata; `load` and `choose` import the one requested plugin.
`hooks` holds the events that many plugins may listen to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.registry.entry import BUILT_IN, Entry, Status
from dovetail.registry.files import register
from dovetail.registry.kinds import KINDS, Kind, kind_named
from dovetail.registry.options import as_text, options_for
from dovetail.registry.registry import Registry, selection_of

if TYPE_CHECKING:
    from dovetail.registry import hooks

__all__ = [
    "BUILT_IN",
    "KINDS",
    "Entry",
    "Kind",
    "Registry",
    "Status",
    "as_text",
    "block",
    "build_options",
    "choose",
    "default",
    "defer",
    "describe",
    "describe_entry",
    "entries",
    "find",
    "foreign",
    "hook_entries",
    "hooks",
    "kind_named",
    "load",
    "load_entry",
    "load_file",
    "load_selection",
    "load_target",
    "lost",
    "make",
    "names",
    "options_for",
    "own",
    "register",
    "require_selection",
    "selection_of",
    "status",
    "value_of",
    "with_entries",
]

default = Registry()

block = default.block
build_options = default.build_options
choose = default.choose
defer = default.defer
describe = default.describe
describe_entry = default.describe_entry
entries = default.entries
find = default.find
foreign = default.foreign
hook_entries = default.hook_entries
load = default.load
load_entry = default.load_entry
load_file = default.load_file
load_selection = default.load_selection
load_target = default.load_target
lost = default.lost
make = default.make
names = default.names
own = default.own
require_selection = default.require_selection
status = default.status
with_entries = default.with_entries


def value_of(kind: str, spec: str, *, where: str | None = None) -> Any:
    """Return the value that a name of a value kind stands for. Raises: as `load`."""
    plugin = load(kind, spec, where=where)
    if isinstance(plugin, type):
        raise TypeError(f"{kind} is not a value kind")
    return plugin.value


def __getattr__(name: str) -> Any:
    # pluggy is imported only if events are used.
    if name == "hooks":
        import importlib

        return importlib.import_module("dovetail.registry.hooks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
