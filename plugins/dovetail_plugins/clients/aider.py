"""aider: set up by variables and arguments; it uses the chat API.

Its `.env` files take precedence over variables, arguments over both.
"""

from __future__ import annotations

import json

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail.interfaces.plugin import Info

FACTS = "model.metadata.json"


class Aider(ClientProgram):
    """aider."""

    info = Info(summary="aider", source="https://aider.chat/docs/llms/openai-compat.html")
    program = "aider"
    install = "pipx install aider-chat"

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return its variables and arguments; the size of the context is in a file."""
        model = f"openai/{server.model}"
        env = {
            "OPENAI_API_BASE": f"{server.url}/v1",
            "OPENAI_API_KEY": server.api_key or "none",
        }
        arguments = ("--model", model, "--openai-api-base", env["OPENAI_API_BASE"])
        if server.context_tokens is None:
            return LaunchSettings(env=env, arguments=arguments)
        facts = {
            "max_input_tokens": server.context_tokens,
            "litellm_provider": "openai",
            "mode": "chat",
        }
        return LaunchSettings(
            env=env,
            files={FACTS: json.dumps({model: facts}, indent=2) + "\n"},
            arguments=(*arguments, "--model-metadata-file", str(server.folder / FACTS)),
        )
