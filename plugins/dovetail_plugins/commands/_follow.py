"""followed: makes a process that a launcher started as a later rank serve the first rank."""

from __future__ import annotations

import os
import signal

from dovetail.config.config import Config


def followed(config: Config) -> int | None:
    """Serve as a rank of the first rank's engine until it ends; return the exit status.

    Returns None immediately in the first rank's process, and without a launcher. Under a launcher
    the first rank's process stops with it. Raises: ConfigError
    """
    from dovetail.config.rules.parallel.placement import launched

    launch = launched(config.parallel)
    if launch is None:
        return None
    if launch.rank == 0:
        from dovetail_plugins.ranks.remote import on_launcher_gone

        on_launcher_gone(lambda: os.kill(os.getpid(), signal.SIGTERM))
        return None
    return _follow(config)


def _follow(config: Config) -> int:
    from dovetail import registry
    from dovetail.config.resolve import resolve
    from dovetail.interfaces.executor import Executor
    from dovetail.observability.configured_log import set_log_up

    set_log_up(config)
    spec = resolve(config)
    executor: type[Executor] = registry.admin.load_selection(spec.executor)
    return executor.follow(spec.run, spec.worker)
