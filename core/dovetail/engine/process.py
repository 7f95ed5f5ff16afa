"""The engine process, started by `client.host.EngineProcess`,
or for a server on another machine by `joining.headless`.

Reads its Boot message and runs the engine that it describes.
"""

from __future__ import annotations

import signal
import sys

from dovetail.engine.ipc.socket_ends import engine_end
from dovetail.engine.messages import Boot
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.processes import process

SWITCH_S = 5e-4
"""The longest a background thread, for example one loading constraints, may hold the GIL."""


def main() -> int:
    """Run the engine of the boot message; return the exit status."""
    boot = process.read_boot(Boot)
    _leave_signals_to_parent()
    _start_logging(boot.spec)
    sys.setswitchinterval(SWITCH_S)
    # Open the socket first, so that the parent can send before the heavy imports below finish.
    end = engine_end(boot.addresses)
    from dovetail.engine import loop

    try:
        return loop.run(boot.spec, end)
    finally:
        end.close()


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and SIGTERM: terminals and service managers send them to the whole process
    group, but the parent wants running requests to finish first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _start_logging(spec: EngineSpec) -> None:
    from dovetail.observability.logging import configure

    configure(
        spec.log_level,
        config=spec.log_config,
        form=spec.log_format,
        prefix=spec.log_prefix,
        is_wanted=spec.sets_up_log,
    )
