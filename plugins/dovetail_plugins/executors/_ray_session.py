"""RaySession: this process's connection to a Ray cluster, shared by its executors.

The cluster is the one that RAY_ADDRESS or an option names, or one that runs on this machine, or
one started here, which ends with this process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dovetail.errors import ConfigError
from dovetail.processes.process import import_paths
from dovetail_plugins.executors._ray_guard import Guard

FLAG = "--distributed-executor-backend"
NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0"}
CONNECT_LIMIT_S = 10.0
REFUSED = "AuthenticationError"
"""In the name or the text of Ray's errors about a cluster's token."""
PASSED_ON = ("DOVETAIL_", "GLOO_", "HF_", "NCCL_", "TORCH_")
"""How the variables begin that ranks on other machines get from this process."""

_lock = threading.Lock()
_num_users = 0
_is_ours = False
_guard: Guard | None = None


def connect(address: str | None, *, flag: str = FLAG) -> Any:
    """Return the module ray, connected to a cluster. Each call needs a `disconnect`. `flag` is the
    flag that requires it, for errors.

    Raises: ConfigError when the cluster cannot be reached
    """
    global _num_users, _is_ours, _guard
    import ray

    with _lock:
        if not ray.is_initialized():
            named = address or os.environ.get("RAY_ADDRESS")
            _check_address(named, flag)
            os.environ.update({key: os.environ.get(key, own) for key, own in NO_REPORTS.items()})
            try:
                with _kept_signals():
                    ray.init(
                        address=address,
                        include_dashboard=False if address is None else None,
                        logging_level="warning",
                    )
            except (
                *(ConnectionError, RuntimeError, TimeoutError, ValueError),
                ray.exceptions.RayError,
            ) as error:
                raise _not_connected(named, error, flag) from error
            _is_ours = True
            if ray._private.worker._global_node.head:
                _guard = Guard()
        _num_users += 1
    return ray


def guard() -> None:
    """See that a cluster that was started here ends with this process, however that ends."""
    if _guard is not None:
        _guard.watch()


def disconnect() -> None:
    """Let go of the cluster; one that was started here ends with the last user."""
    global _num_users, _is_ours, _guard
    import ray

    with _lock:
        _num_users -= 1
        if _num_users == 0 and _is_ours:
            _is_ours = False
            with _kept_signals():
                ray.shutdown()
            if _guard is not None:
                _guard.close()
                _guard = None


def _check_address(address: str | None, flag: str) -> None:
    """Check that there is a listener: Ray itself would try for minutes. Raises: ConfigError"""
    if not address or address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise _unreachable(address, "the address is not HOST:PORT", flag)
    try:
        socket.create_connection((host, int(port)), CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error), flag) from error


def _not_connected(address: str | None, error: BaseException, flag: str) -> ConfigError:
    """Return why Ray did not connect, in words."""
    if not _is_about_token(error):
        return _unreachable(address, str(error).strip().partition("\n")[0], flag)
    return ConfigError(
        f"{_name(address)} lets in only who shows its token, and this program has not.",
        where=flag,
        fix="set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what `ray get-auth-token` prints "
        "where the cluster was started.",
    )


def _is_about_token(error: BaseException | None) -> bool:
    """Return whether an error of Ray, or one that led to it, is about the cluster's token."""
    while error is not None:
        if REFUSED in f"{type(error).__name__}: {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def _name(address: str | None) -> str:
    return f"the Ray cluster at {address}" if address else "a Ray cluster"


def _unreachable(address: str | None, reason: str, flag: str) -> ConfigError:
    return ConfigError(
        f"{_name(address)} cannot be reached: {reason}",
        where=flag,
        fix="give the address of a cluster that runs in RAY_ADDRESS, or unset it: then one is "
        "started here.",
    )


def variables() -> dict[str, str]:
    """Return the environment variables that are passed on to ranks."""
    passed = {name: text for name, text in os.environ.items() if name.startswith(PASSED_ON)}
    return passed | {"PYTHONPATH": os.pathsep.join(import_paths())}


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Preserve this process's signal handlers: with Ray's, SIGTERM would end it immediately."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
