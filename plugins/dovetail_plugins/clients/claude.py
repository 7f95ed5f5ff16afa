"""Claude Code: set up by variables and a settings file; it uses the messages API.

The `env` of the user's settings takes precedence over variables, and the file over both.
"""

from __future__ import annotations

import json

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail.interfaces.plugin import Info

MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
"""The main model, its aliases (haiku does small work in the background), and that of subagents."""
FILE = "settings.json"
OUTPUT_SHARE = 4
"""An answer may take this part of the context: the program asks for 32,000 tokens otherwise."""


class Claude(ClientProgram):
    """Claude Code."""

    info = Info(summary="Claude Code", source="https://code.claude.com/docs/en/env-vars")
    program = "claude"
    install = "npm install -g @anthropic-ai/claude-code"

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return its variables and its file. An API key of the user's would be used in place of the
        token."""
        env = {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_AUTH_TOKEN": server.api_key or "none",
            "ANTHROPIC_API_KEY": "",
            **dict.fromkeys(MODEL_VARIABLES, server.model),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # its text differs: no prefix would be reused
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        if server.context_tokens is not None:
            max_tokens = server.context_tokens // OUTPUT_SHARE
            env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(min(32_000, max_tokens))
            env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(server.context_tokens)
        text = json.dumps({"model": server.model, "env": env}, indent=2) + "\n"
        return LaunchSettings(
            env=env, files={FILE: text}, arguments=("--settings", str(server.folder / FILE))
        )
