"""Checks which hosts and addresses media may be fetched from.

An address is refused unless it is public: what only this machine or its network can reach is never
fetched for a client. Source: IANA's registries of special addresses, as in `ipaddress`; RFC 6052
(NAT64), RFC 3056 (6to4), RFC 4380 (Teredo) for addresses embedded in addresses.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from dovetail.errors import RequestError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]*|\d+)")
WEB_PORTS = (80, 443)
FIRST_FREE_PORT = 1024


def forbidden(what: str, where: str) -> RequestError:
    """Return the error for a medium that must not be fetched."""
    return RequestError(
        what,
        where=where,
        fix="send the data in a data: URL, or start the server with --allowed-media-domains HOST.",
        code="media_forbidden",
    )


def check_host(host: str, port: int, domains: Sequence[str], where: str) -> None:
    """Raise RequestError unless a URL may name this host and port; called before it is resolved."""
    if domains:
        if host.rstrip(".") not in domains:
            raise forbidden(f'media may not be fetched from "{host[:128]}".', where)
        return
    if port not in WEB_PORTS and port < FIRST_FREE_PORT:
        raise forbidden(f"media may not be fetched from port {port}.", where)
    last = host.rstrip(".").rpartition(".")[2]
    if _NUMBER.fullmatch(last) and not _is_address(host):
        raise forbidden(f'"{host[:128]}" is an address in an unusual spelling.', where)


def check_addresses(
    host: str, addresses: Sequence[str], domains: Sequence[str], where: str
) -> None:
    """Raise RequestError unless every address of a host may be connected to.

    A host listed in `domains` may have private addresses. Link-local addresses (where clouds serve
    their metadata) and addresses of no single machine must be listed themselves.
    """
    is_named = host.rstrip(".") in domains
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        if is_named and (_is_address(host) or not _is_never(address)):
            continue
        if not is_public(address):
            raise forbidden(f'"{host[:128]}" is at {text}, which is not a public address.', where)


def is_public(address: Address) -> bool:
    """Return whether an address, and any address embedded in it, is public."""
    return all(
        one.is_global and not one.is_multicast and not one.is_reserved for one in _all_of(address)
    )


def _is_never(address: Address) -> bool:
    return any(
        one.is_link_local or one.is_multicast or one.is_unspecified or one.is_reserved
        for one in _all_of(address)
    )


def _all_of(address: Address) -> list[Address]:
    """Return the addresses within one; only the IPv4 address if it is just a spelling of that."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if any(address in network for network in _NAT64):
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    # Whether all of 6to4 is global depends on Python's version: the embedded address decides.
    within = address.ipv4_mapped or address.sixtofour
    return [within] if within is not None else [address, *(address.teredo or ())]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
