"""FakeEnd: how a fake engine ends, when a test says so."""

from __future__ import annotations

import asyncio


class FakeEnd:
    """The part of AsyncEngine about its end."""

    def __init__(self) -> None:
        self.is_alive = True
        self.death_reason: str | None = None
        self._ended = asyncio.Event()

    def die(self, reason: str = "killed") -> None:
        """End the engine; whatever runs raises EngineDead at its next step."""
        self.is_alive, self.death_reason = False, reason
        self._ended.set()

    async def wait_end(self) -> None:
        """Return once the engine has died."""
        await self._ended.wait()
