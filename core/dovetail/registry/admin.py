"""What dovetail's own start-up, commands, docs and tests ask of the registry; plugins need none."""

from __future__ import annotations

from typing import Any

from dovetail.registry import description, kinds, options, registry
from dovetail.registry.registry import default

block = default.catalog.block
load_file = default.load_file
with_entries = default.with_entries
"""The names on offer: hide plugins, add the plugins of a file, add some inside a with block."""

hook_entries = default.catalog.hook_entries
lost = default.catalog.lost
own = default.catalog.own
kind_named = kinds.kind_named
"""Metadata: hook modules, groups that belong to no kind, how dovetail's own are spelled, a kind."""

load_entry = default.load_entry
load_target = default.load_target
foreign = default.foreign
"""Loading: a plugin by its entry or its target, and the loaded plugins of other packages."""

defer = default.defer
selection_of = registry.selection_of
load_selection = default.load_selection
require_selection = default.require_selection
build_options = default.build_options
"""Choices as data for other processes: make one unchecked, and load the plugin of one."""

options_for = options.options_for
as_text = options.as_text
"""Options of a plugin from text, and as text."""

describe = description.describe
describe_entry = description.describe_entry
"""Plain data for docs: all kinds, or one plugin."""


def value_of(kind: str, spec: str, *, where: str | None = None) -> Any:
    """Return the value that a name of a value kind stands for. Raises: as `load`."""
    plugin = default.load(kind, spec, where=where)
    if isinstance(plugin, type):
        raise TypeError(f"{kind} is not a value kind")
    return plugin.value
