"""The engine process, started by `client.host.EngineProcess`,
or for a server on another machine by `joining.headless`.

Takes its Boot message and runs an engine as described there.
"""

from __future__ import annotations

import signal
import sys

from dovetail import process
from dovetail.engine.ipc.socket_ends import engine_end
from dovetail.engine.messages import Boot
from dovetail.interfaces.spec import EngineSpec

SWITCH_S = 5e-4
"""How long a thread beside the steps, one that loads constraints, keeps the interpreter at most."""


def main() -> int:
    """Run the engine of the boot message; return the exit status."""
    boot = process.read_boot(Boot)
    _leave_signals_to_parent()
    _start_logging(boot.spec)
    sys.setswitchinterval(SWITCH_S)
    # The socket first: the parent's first message need not wait for the heavy imports below.
    end = engine_end(boot.addresses)
    from dovetail.engine import loop

    try:
        return loop.run(boot.spec, end)
    finally:
        end.close()


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and SIGTERM: a terminal or a service manager sends them to the whole group,
    and the parent still wants running requests finished."""
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
