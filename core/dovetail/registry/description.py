"""What the registry tells of kinds and plugins, as plain data for docs and commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dovetail.interfaces.plugin import Value
from dovetail.registry.entry import Entry
from dovetail.registry.kinds import KINDS
from dovetail.registry.options import describe_options
from dovetail.registry.registry import Loaded, default


def describe() -> list[dict[str, Any]]:
    """Return every kind with its entries, statuses and options. Imports every plugin."""
    return [
        {
            **asdict(kind),
            "kind": kind.name,
            "group": kind.group,
            "entries": [describe_entry(entry) for entry in default.catalog.entries(kind.name)],
        }
        for kind in KINDS.values()
    ]


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return everything known about one entry; imports its plugin."""
    status = default.status(entry)
    facts = asdict(entry) | {"status": status.word, "reason": status.reason}
    if status.word == "broken":
        return facts
    return facts | _describe_plugin(default.load_target(entry.kind, entry.target))


def _describe_plugin(plugin: Loaded) -> dict[str, Any]:
    if isinstance(plugin, Value):
        return {"summary": plugin.summary, "value": plugin.value}
    known = plugin.known_capabilities
    return {
        "summary": plugin.info.summary,
        "source": plugin.info.source,
        "requires": list(plugin.info.requires),
        "extra": plugin.info.extra,
        "devices": list(plugin.info.devices),
        "interface_version": plugin.interface_version,
        "auto_rank": plugin.auto_rank,
        "capabilities": {word: known[word] for word in sorted(plugin.capabilities)},
        "expected_failures": dict(plugin.expected_failures),
        "options": describe_options(plugin),
    }
