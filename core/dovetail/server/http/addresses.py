"""Which addresses refer to this machine. Imports no web framework."""

from __future__ import annotations

import ipaddress

from dovetail.config.sections.frontend import FrontendConfig

DEFAULT_HOST = "127.0.0.1"
ANY = "*"


def is_address(name: str) -> bool:
    """Return whether a host is an IP address instead of a name."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Return whether a host refers to this machine only."""
    if name == "localhost":
        return True
    return is_address(name) and ipaddress.ip_address(name.partition("%")[0]).is_loopback


def is_local_only(frontend: FrontendConfig) -> bool:
    """Return whether the server is meant only for programs on this machine, without a key."""
    if frontend.has_keys or frontend.uds is not None or ANY in frontend.allowed_hosts:
        return False
    return is_loopback(frontend.host or DEFAULT_HOST)
