"""Media from http: and https: URLs, with limits on time, bytes and redirects.

A host is resolved once, all its addresses are checked, and the connection goes to one of them: a
later change of its DNS records has no effect. TLS still verifies the host name. Redirects are
followed here, each checked like the first URL. The environment (proxies, .netrc) is not used, no
cookie is stored, and no body is decompressed: compressed responses are refused.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urljoin

import httpcore
import httpx

from dovetail.interfaces.data.media_settings import MediaSettings
from dovetail.multimodal.addresses import check_addresses, check_host, forbidden
from dovetail.multimodal.content import MediaItem
from dovetail.multimodal.refusals import check_content_type, fetch_failed, too_large
from dovetail.version import __version__

MAX_PORT = 65535
MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PORTS = {"http": 80, "https": 443}
HEADERS = (
    (b"User-Agent", f"dovetail/{__version__}".encode()),
    (b"Accept", b"*/*"),
    (b"Accept-Encoding", b"identity"),
    (b"Connection", b"close"),
)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolved(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host. Raises: OSError"""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFetcher:
    """Fetches media by the settings. `resolve` and `tls` are replaced in tests."""

    settings: MediaSettings
    resolve: Resolve = resolved
    tls: ssl.SSLContext | None = None

    async def fetch(self, item: MediaItem) -> bytes:
        """Return the bytes at an item's URL. Raises: RequestError"""
        assert item.url is not None
        limit_s = self.settings.fetch_timeouts_s[item.modality]
        try:
            async with asyncio.timeout(limit_s):
                return await self._follow(item, item.url)
        except TimeoutError:
            raise fetch_failed(item, f"fetching it took longer than {limit_s:g} s.") from None
        except (httpcore.NetworkError, httpcore.TimeoutException, OSError) as error:
            raise fetch_failed(item, f"it cannot be fetched: {_words(error)}.") from None
        except (httpcore.ProtocolError, UnicodeError) as error:
            raise fetch_failed(item, f"its server does not speak HTTP: {_words(error)}.") from None

    async def _follow(self, item: MediaItem, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._get(item, url)
            if isinstance(found, bytes):
                return found
            if not self.settings.allows_redirects:
                raise fetch_failed(item, "its server redirects, which is not allowed here.")
            url = urljoin(url, found.url)
        raise fetch_failed(item, f"its server redirects more than {MAX_REDIRECTS} times.")

    async def _get(self, item: MediaItem, text: str) -> bytes | _Redirect:
        """Return the body at a URL, or its redirect. Raises: RequestError"""
        url = _parsed(item, text)
        port = url.port or PORTS[url.scheme]
        check_host(url.host, port, self.settings.domains, item.where)
        backend = _CheckedBackend(item, self.settings.domains, self.resolve)
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=port, target=url.raw_path
        )
        headers = [(b"Host", url.netloc), *HEADERS]
        tls = self.tls or _tls()
        async with (
            httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=backend) as pool,
            pool.stream("GET", target, headers=headers) as response,
        ):
            return await self._body(item, response)

    async def _body(self, item: MediaItem, response: httpcore.Response) -> bytes | _Redirect:
        fields = {name.lower(): value for name, value in response.headers}
        if response.status in REDIRECTS and b"location" in fields:
            return _Redirect(fields[b"location"].decode("latin-1"))
        if response.status != 200:
            raise fetch_failed(item, f"its server answered with status {response.status}.")
        if fields.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise fetch_failed(item, "its server compressed it, though it was asked not to.")
        check_content_type(item, fields.get(b"content-type", b"").decode("latin-1"))
        max_bytes = self.settings.max_bytes[item.modality]
        length = fields.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > max_bytes:
            raise too_large(item, max_bytes)
        body = bytearray()
        async for part in response.aiter_stream():
            body += part
            if len(body) > max_bytes:
                raise too_large(item, max_bytes)
        return bytes(body)


@dataclass(frozen=True, slots=True)
class _Redirect:
    url: str


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects only to checked addresses, for one request."""

    def __init__(self, item: MediaItem, domains: Sequence[str], resolve: Resolve) -> None:
        self._item = item
        self._domains = domains
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of the host that answers. Raises: RequestError"""
        name = host.removeprefix("[").removesuffix("]")
        addresses = await self._resolve(name, port)
        check_addresses(name.lower(), addresses, self._domains, self._item.where)
        fault: Exception = httpcore.ConnectError("its host has no address")
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address)
            except httpcore.NetworkError as error:
                fault = error
        raise fault

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._network.sleep(seconds)


def _parsed(item: MediaItem, text: str) -> httpx.URL:
    """Return a URL that may be fetched. Raises: RequestError"""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError) as error:
        raise fetch_failed(item, f"the URL is invalid: {_words(error)}.") from None
    if url.scheme not in PORTS:
        raise forbidden(f'media are not fetched by "{url.scheme[:16]}:".', item.where)
    if url.userinfo:
        raise forbidden("a URL of media may not hold a user or a password.", item.where)
    if not url.host or "%" in url.host or "\\" in text:
        raise forbidden("the URL names no host.", item.where)
    if url.port is not None and not 0 < url.port <= MAX_PORT:
        raise forbidden(f"the port {url.port} is not 1 to {MAX_PORT}.", item.where)
    return url


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")[:200]
