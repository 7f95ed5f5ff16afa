"""The process in which `inspect` tries out a model. Its boot message is a RunSpec."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.data.spec import RunSpec
from dovetail.processes import process


def main() -> int:
    """Send the outcome of the trial; return the exit status."""
    from dovetail_plugins.inspect.trial import tried

    channel = process.open_channel()
    channel.sendall(msgspec.json.encode(tried(process.read_boot(RunSpec))))
    channel.close()
    return 0
