"""`dovetail route` alone, before servers that are not there: who is let in, ids, addresses."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import NoOptions
from dovetail.server.families import build_apis
from dovetail.server.launch.sockets import bind
from dovetail_plugins.commands import route
from dovetail_plugins.gateway.disaggregated import DisaggregatedRouter
from dovetail_plugins.gateway.route_app import build_route
from dovetail_plugins.gateway.upstream import upstream_of
from support.certificates import Certificates, make_certificates
from support.fake_upstream import FakeServer

BODY = {"prompt": [1, 2, 3], "max_tokens": 8}


class Halves:
    """The application between two servers."""

    def __init__(self, *keys: str) -> None:
        self.prefill = FakeServer("http://a", kv_transfer_params={"remote_port": 7})
        self.decode = FakeServer("http://b", text="hello")
        made = DisaggregatedRouter([self.prefill], [self.decode])  # type: ignore[list-item]
        frontend = FrontendConfig(api_key=keys, enable_request_id_headers=True)
        self.app = build_route(made, frontend, build_apis().values())

    def ask(self, method: str = "POST", path: str = "/v1/completions", **headers: str) -> Any:
        async def main() -> Any:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://r") as client:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return await client.request(method, path, json=BODY, headers=named)

        return asyncio.run(main())


def test_an_id_goes_through_both_halves() -> None:
    halves = Halves()
    for given in ("traced-1", "", "a b"):
        answer = halves.ask(x_request_id=given)
        assert answer.json() == {"text": "hello"}
        ids = {
            headers[b"x-request-id"].decode()
            for headers, _ in (halves.prefill.got[-1], halves.decode.got[-1])
        }
        assert ids == {answer.headers["x-request-id"]}
        assert (ids == {given}) == (given == "traced-1")
        assert len(answer.headers.get_list("x-request-id")) == 1
    assert halves.prefill.got[0][1]["max_tokens"] == 1
    assert halves.decode.got[0][1] == BODY | {"kv_transfer_params": {"remote_port": 7}}


def test_a_key_is_asked_for_and_handed_on() -> None:
    halves = Halves("one", "two")
    assert halves.ask().status_code == 401
    assert halves.ask(authorization="Bearer three").status_code == 401
    assert halves.ask("GET", "/v1/models").status_code == 401
    assert not halves.prefill.got and not halves.decode.got
    assert halves.ask(authorization="Bearer two").status_code == 200
    assert halves.ask(x_api_key="one").status_code == 200
    for server in (halves.prefill, halves.decode):
        assert server.got[0][0][b"authorization"] == b"Bearer two"
        assert server.got[1][0][b"x-api-key"] == b"one"
    assert halves.ask("GET", "/health").status_code == 200


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    route.RouteCommand(NoOptions()).add_arguments(parser)
    return parser.parse_args(["--prefill", "http://a:1", "--decode", "http://b:1", *words])


def test_keys_come_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert route.frontend_of(parsed()).api_key == ()
    monkeypatch.setenv("DOVETAIL_API_KEY", "hidden")
    assert route.frontend_of(parsed()).api_key == ("hidden",)
    assert route.frontend_of(parsed("--api-key", "a", "b")).api_key == ("a", "b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "70000"), "not a port"),
        (("--api-key", " "), "a key is empty"),
        (("--ssl-cert-reqs", "5"), "not 0, 1 or 2"),
        (("--ssl-keyfile", "x"), "TLS needs a certificate"),
        (("--ssl-certfile", "/no/such/file"), "cannot read"),
    ],
)
def test_what_cannot_work_says_why(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        args = parsed(*words)
        route.server_of(args, route.frontend_of(args))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def serving(*words: str) -> Iterator[int]:
    """Give the port at which `dovetail route` answers within the block."""
    args = parsed(*words)
    server = uvicorn.Server(route.server_of(args, route.frontend_of(args)))
    sock = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    deadline_s = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline_s
        time.sleep(0.005)
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


def test_an_address_of_its_own_over_tls(certificates: Certificates, tmp_path: Path) -> None:
    words = (
        "--ssl-certfile",
        certificates.cert("first"),
        "--ssl-keyfile",
        certificates.key("first"),
    )
    with serving(*words, "--api-key", "k") as port:
        trusting = ssl.create_default_context(cafile=certificates.cert("authority"))
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trusting) as client:
            assert client.get("/v1/models").status_code == 401
            health = client.get("/health")
            assert health.status_code == 503 and health.json()["decode"][0]["healthy"] is False
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{port}/health")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"https://localhost:{port}/health")


def test_names_that_a_route_without_a_key_answers_to() -> None:
    """What LocalOnly advises can be done: --allowed-hosts, --allowed-origins."""
    page = "https://chat.example.com"
    frontend = route.frontend_of(parsed("--allowed-hosts", "proxy", "--allowed-origins", page))
    assert (frontend.allowed_hosts, frontend.allowed_origins) == (("proxy",), (page,))
    assert route.frontend_of(parsed("--allowed-origins", "*")).allowed_hosts == ("*",)
    assert route.frontend_of(parsed()).allowed_hosts == ()


@pytest.mark.parametrize(
    "url", ["http://me:hidden@host:1", "https://hidden@host", "http://@host:1"]
)
def test_no_url_of_a_server_holds_a_password(url: str) -> None:
    with pytest.raises(ConfigError, match="a user or a password") as caught:
        upstream_of(url, "--prefill")
    assert "hidden" not in str(caught.value)
