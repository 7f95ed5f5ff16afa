"""Media by URL: what is fetched, from where, and what the site is told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import MediaSettings
from dovetail.multimodal.addresses import check_addresses, check_host, is_public
from dovetail.multimodal.fetch import MediaFetcher
from support.certificates import make_certificates
from support.media import Site, image_item, picture, reply

PICTURE = picture()


def here(**more: Any) -> MediaSettings:
    """Return settings that name this machine by its address and by a name."""
    return MediaSettings(domains=("127.0.0.1", "good.test"), **more)


async def at_home(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def test_a_picture_is_fetched_and_the_site_is_told_little() -> None:
    async def run() -> None:
        async with Site({"/a.png": reply(PICTURE)}) as site:
            fetcher = MediaFetcher(settings=here())
            assert await fetcher.fetch(image_item(site.url("/a.png?size=big"))) == PICTURE
        (head,) = site.seen
        assert head.startswith("GET /a.png?size=big HTTP/1.1\r\n")
        assert f"Host: 127.0.0.1:{site.port}\r\n" in head
        assert "cookie" not in head.lower() and "authorization" not in head.lower()

    asyncio.run(run())


def test_a_host_is_resolved_once_and_connected_to_where_it_was_found() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def run() -> None:
        async with Site({"/a.png": reply(PICTURE)}) as site:
            fetcher = MediaFetcher(settings=here(), resolve=resolve)
            assert await fetcher.fetch(image_item(site.url("/a.png", "good.test"))) == PICTURE
            assert f"Host: good.test:{site.port}\r\n" in site.seen[0]

    asyncio.run(run())
    assert asked == ["good.test"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_where_they_are_allowed(status: int) -> None:
    answers = {
        "/old": reply(status=status, headers={"Location": "/new"}),
        "/new": reply(PICTURE),
    }

    async def run() -> None:
        async with Site(answers) as site:
            item = image_item(site.url("/old"))
            assert await MediaFetcher(settings=here()).fetch(item) == PICTURE
            strict = MediaFetcher(settings=here(allows_redirects=False))
            with pytest.raises(RequestError, match="redirects, which is not allowed"):
                await strict.fetch(item)

    asyncio.run(run())


def test_tls_asks_for_the_hosts_name_though_it_connects_to_an_address(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(made.cert("first"), made.key("first"))
    names: list[str | None] = []
    ours.sni_callback = lambda _, name, __: names.append(name)
    trusting = ssl.create_default_context(cafile=made.cert("authority"))

    async def run() -> None:
        settings = MediaSettings(domains=("localhost", "good.test"))
        fetcher = MediaFetcher(settings=settings, resolve=at_home, tls=trusting)
        async with Site({"/": reply(PICTURE)}, tls=ours) as site:
            good = image_item(site.url("/", "localhost", "https"))
            assert await fetcher.fetch(good) == PICTURE
            other = image_item(site.url("/", "good.test", "https"))
            with pytest.raises(RequestError, match="cannot be fetched"):
                await fetcher.fetch(other)

    asyncio.run(run())
    assert names == ["localhost", "good.test"]


def test_the_environments_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def run() -> None:
        async with Site({"/": reply(PICTURE)}) as site:
            item = image_item(site.url("/"))
            assert await MediaFetcher(settings=here()).fetch(item) == PICTURE

    asyncio.run(run())


PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8", "2002:0808:0808::1"]
INNER = [
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.7"),
    *("203.0.113.5", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "2002:7f00:0001::1", "2002:a00:1::1"),
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_taken(address: str) -> None:
    check_addresses("any.test", [address], (), "x")


@pytest.mark.parametrize("address", INNER)
def test_addresses_within_are_refused(address: str) -> None:
    with pytest.raises(RequestError, match="not a public address"):
        check_addresses("any.test", [address], (), "x")
    with pytest.raises(RequestError):
        check_addresses("any.test", ["8.8.8.8", address], (), "x")


def test_named_hosts_may_be_private_but_not_their_clouds_metadata() -> None:
    check_addresses("store.test", ["10.0.0.9"], ("store.test",), "x")
    with pytest.raises(RequestError):
        check_addresses("store.test", ["169.254.169.254"], ("store.test",), "x")
    check_addresses("169.254.0.9", ["169.254.0.9"], ("169.254.0.9",), "x")
    assert is_public.__doc__


def test_only_named_hosts_are_asked_where_any_are_named() -> None:
    check_host("a.test", 443, ("a.test",), "x")
    check_host("a.test", 8443, ("a.test",), "x")
    for host in ("b.test", "sub.a.test", "a.test.evil.test", "xa.test"):
        with pytest.raises(RequestError, match="may not be fetched from"):
            check_host(host, 443, ("a.test",), "x")


def test_ports_of_other_services_are_refused() -> None:
    for port in (80, 443, 8080, 40000):
        check_host("a.test", port, (), "x")
    for port in (22, 25, 111, 445):
        with pytest.raises(RequestError, match=f"port {port}"):
            check_host("a.test", port, (), "x")
