"""Codex: set up by a profile in a home folder for dovetail; it uses the responses API.

It writes settings of its own into the home's config.toml, which is therefore left to it. A profile
is a further file, laid over that one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail.interfaces.plugin import Info

PROFILE = "dovetail"
KEY_VARIABLE = "LOCAL_SERVER_KEY"


class Codex(ClientProgram):
    """Codex."""

    info = Info(summary="Codex", source="https://developers.openai.com/codex/config-reference")
    program = "codex"
    install = "npm install -g @openai/codex"

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        """Return its home, and the profile in it."""
        env = {"CODEX_HOME": str(server.folder)}
        if server.api_key is not None:
            env[KEY_VARIABLE] = server.api_key
        files = {f"{PROFILE}.config.toml": _profile(server)}
        return LaunchSettings(env=env, files=files, arguments=("--profile", PROFILE))


def _profile(server: LaunchTarget) -> str:
    provider = {
        "name": PROFILE,
        "base_url": f"{server.url}/v1",
        "wire_api": "responses",
    } | ({} if server.api_key is None else {"env_key": KEY_VARIABLE})
    top: dict[str, str | int] = {"model": server.model, "model_provider": PROFILE}
    if server.context_tokens is not None:
        top["model_context_window"] = server.context_tokens
    return f"{_toml(top)}\n[model_providers.{PROFILE}]\n{_toml(provider)}"


def _toml(values: Mapping[str, str | int]) -> str:
    """Return lines of TOML, in which texts and numbers are written as in JSON."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
