"""Tries out whether an engine would refuse to create the model, in a process that may import torch.

That is a child process, or this one if it has already imported torch. Imports no torch itself.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RunSpec
from dovetail.processes import process

LIMIT_S = 300.0
READ_BYTES = 1 << 16


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a trial: the parts of an error, or empty."""

    what: str = ""
    where: str | None = None
    fix: str | None = None


def refusal(run: RunSpec) -> ConfigError | None:
    """Return the error that serving would raise; None if the model can be created."""
    found = tried(run) if "torch" in sys.modules else tried_in_child(run)
    return ConfigError(found.what, where=found.where, fix=found.fix) if found.what else None


def tried(run: RunSpec) -> Refusal:
    """Return the outcome of a trial in this process."""
    from dovetail_plugins.inspect.runner_trial import try_out

    try:
        try_out(run)
    except ConfigError as error:
        return Refusal(what=error.what, where=error.where, fix=error.fix)
    return Refusal()


def tried_in_child(run: RunSpec) -> Refusal:
    """Return the outcome of a trial in a child process."""
    child = process.spawn(
        "dovetail_plugins.inspect.trial_child", run, stderr=subprocess.DEVNULL, has_channel=True
    )
    assert child.channel is not None
    child.channel.settimeout(LIMIT_S)
    parts: list[bytes] = []
    try:
        while not parts or parts[-1]:
            parts.append(child.channel.recv(READ_BYTES))
    except OSError:
        parts = []
    status = child.end(grace_s=1.0)
    answer = b"".join(parts)
    if not answer:
        return Refusal(what=f"making the model ended with status {status}")
    return msgspec.json.decode(answer, type=Refusal)
