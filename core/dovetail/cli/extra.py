"""Subcommands that installed packages add through the registry's hooks."""

from __future__ import annotations

from typing import Any

from dovetail import registry


def extra_commands() -> dict[str, Any]:
    """Return name -> module of every subcommand added by a plugin package."""
    if not registry.hook_entries():
        return {}
    found = registry.hooks.tell(registry.hooks.subcommands, {})
    return {name: module for answer in found for name, module in answer.items()}
