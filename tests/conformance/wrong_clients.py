"""Clients that each break one clause of the kit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail.interfaces.plugin import Info


class RightClient(ClientProgram):
    """Keeps every clause."""

    info = Info(summary="a test's own")
    program = "agent"
    install = "pip install agent"

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        env = {"AGENT_URL": server.url, "AGENT_KEY": server.api_key or ""}
        return LaunchSettings(env=env, files={"model": server.model})


class SpacedClient(RightClient):
    """Has no command, but a sentence."""

    program = "my agent --fast"


class DeafClient(RightClient):
    """Always uses the same address."""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        return super().settings(replace(server, url="http://localhost:8000"))


class DemandingClient(RightClient):
    """Fails without a key."""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        assert server.api_key is not None
        return super().settings(server)


class LoyalClient(RightClient):
    """Stays with the first model."""

    first = ""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        self.first = self.first or server.model
        return super().settings(replace(server, model=self.first))


class StrayingClient(RightClient):
    """Puts a file beside its folder."""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        return replace(super().settings(server), files={"../model": server.model})


class HomelyClient(RightClient):
    """Writes to the user's home."""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        (Path(os.environ["HOME"]) / ".agent").write_text(server.url)
        return super().settings(server)


class PointingClient(RightClient):
    """Names a file of the user's."""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        arguments = ("--config", str(Path(os.environ["HOME"]) / ".agent"))
        return replace(super().settings(server), arguments=arguments)


class DashedClient(RightClient):
    """Has a variable that no shell can set."""

    def settings(self, server: LaunchTarget) -> LaunchSettings:
        settings = super().settings(server)
        return replace(settings, env={**settings.env, "agent-mode": "1"})
