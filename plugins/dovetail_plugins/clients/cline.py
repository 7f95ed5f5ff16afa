"""Cline, in a terminal: set up by a file that a variable names; it uses the chat API.

The file has its providers and keys. Its other settings, rules and conversations stay where they
are.
"""

from __future__ import annotations

import json
from typing import Any

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail.interfaces.plugin import Info

FILE = "providers.json"
PROVIDER = "openai-compatible"
TIME = "2026-01-01T00:00:00.000Z"
"""Each provider of the file needs the time of a change; nothing reads it here."""


class Cline(ClientProgram):
    """Cline."""

    info = Info(summary="Cline", source="https://docs.cline.bot/cline-cli/configuration")
    program = "cline"
    install = "npm install -g cline"

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return its variable and the file."""
        settings: dict[str, Any] = {
            "provider": PROVIDER,
            "baseUrl": f"{server.url}/v1",
            "apiKey": server.api_key or "none",
            "model": server.model,
        }
        if server.context_tokens is not None:
            settings["contextWindow"] = server.context_tokens
        provider = {"settings": settings, "updatedAt": TIME, "tokenSource": "manual"}
        content = {
            "version": 1,
            "lastUsedProvider": PROVIDER,
            "providers": {PROVIDER: provider},
        }
        env = {
            "CLINE_PROVIDER_SETTINGS_PATH": str(server.folder / FILE),
            "CLINE_SESSION_BACKEND_MODE": "local",  # not in a process that outlives it
        }
        return LaunchSettings(env=env, files={FILE: json.dumps(content, indent=2) + "\n"})
