"""The gate of API keys: --api-key, --api-keys-file, and owners that a trusted proxy names."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.gate import Gate, GateFacts
from dovetail.interfaces.plugin import Info
from dovetail_plugins.gates._keys_file import KeysFile


class Keys(Gate):
    """Without keys and without --owner-header everybody may send requests, and nothing is counted.

    A key of --api-key allows everything. Its owner is named after its hash; that of a key of the
    file has the key's name, and what it stores belongs to that name.
    """

    info = Info(summary="API keys with scopes and limits, and owners that a trusted proxy names")

    def __init__(self, options: Any, facts: GateFacts) -> None:
        from dovetail_plugins.gates._door import Door

        self._door = Door(facts)

    @classmethod
    def check(cls, frontend: Any) -> None:
        """Raise ConfigError for a file that cannot be read."""
        if frontend.api_keys_file:
            KeysFile(frontend.api_keys_file)

    async def enter(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Let a request in, or answer it with an error."""
        await self._door.enter(app, scope, receive, send)

    def knows(self, owner: str) -> bool:
        """Return whether a named owner is still in the file; others are known by their keys."""
        return self._door.knows(owner)
