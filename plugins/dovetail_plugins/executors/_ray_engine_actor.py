"""EngineActor: a Ray actor whose process runs one engine, as `dovetail serve --headless` does."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from dovetail.engine.faults import fault_of
from dovetail.engine.messages import ErrorMessage
from dovetail.errors import DovetailError
from dovetail_plugins.executors._ray_places import VISIBLE, own_place


class EngineBoot(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's task: to run the engine at a `place` among those that a config gives its machine.
    `gpus` are the GPUs of all of them; `folder` is the base of relative paths."""

    fields: dict[str, Any]
    place: int
    gpus: tuple[str, ...]
    folder: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: with an exit status, or with an error."""

    status: int = 0
    fault: ErrorMessage | None = None


class EngineActor:
    """Reports its place, then runs its engine until the server ends."""

    def place(self) -> bytes:
        """Return this actor's Place, encoded."""
        return own_place()

    def serve(self, boot: bytes) -> bytes:
        """Run the engine; return its Outcome, encoded."""
        decoded = msgspec.msgpack.decode(boot, type=EngineBoot)
        if decoded.gpus:
            os.environ[VISIBLE] = ",".join(decoded.gpus)
        with contextlib.suppress(OSError):  # another machine need not have the folder
            os.chdir(decoded.folder)
        try:
            outcome = Outcome(status=_run(decoded))
        except DovetailError as error:
            outcome = Outcome(fault=fault_of(error))
        return msgspec.msgpack.encode(outcome)


def _run(boot: EngineBoot) -> int:
    from dovetail.config.config import Config  # after the environment: torch looks for devices
    from dovetail_plugins.joining.headless import run_one

    return run_one(Config.from_fields(boot.fields, origin="server"), boot.place)
