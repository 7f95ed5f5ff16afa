"""opencode: set up by a variable; it uses the chat API.

The variable's text takes precedence over the files of the user and of a project. Other settings in
those files keep their effect.
"""

from __future__ import annotations

import json
from typing import Any

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail.interfaces.plugin import Info

PROVIDER = "dovetail"
OUTPUT_SHARE = 4
"""An answer may take this part of the context."""


class Opencode(ClientProgram):
    """opencode."""

    info = Info(summary="opencode", source="https://opencode.ai/docs/config")
    program = "opencode"
    install = "npm install -g opencode-ai"

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return its variable."""
        model: dict[str, Any] = {"name": server.model}
        if server.context_tokens is not None:
            output = server.context_tokens // OUTPUT_SHARE
            model["limit"] = {"context": server.context_tokens, "output": output}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": PROVIDER,
            "options": {"baseURL": f"{server.url}/v1", "apiKey": server.api_key or "none"},
            "models": {server.model: model},
        }
        chosen = f"{PROVIDER}/{server.model}"
        config = {"model": chosen, "small_model": chosen, "provider": {PROVIDER: provider}}
        return LaunchSettings(env={"OPENCODE_CONFIG_CONTENT": json.dumps(config)})
