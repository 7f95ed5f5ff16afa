"""TLS on real sockets: what a client of Python's ssl sees, what files are refused, renewal."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.server.launch import http_server, lifecycle
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail.server.launch.sockets import bind
from support.certificates import Certificates, make_certificates
from support.serving import app_for


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_ciphers(made: Certificates) -> None:
    name = "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES256-GCM-SHA384"
    with pytest.raises(ConfigError) as caught:
        check_frontend(flags(made, ssl_ciphers="NO-SUCH-CIPHER"))
    assert caught.value.where == "--ssl-ciphers"
    with pytest.raises(ConfigError, match="needs a certificate"):
        check_frontend(FrontendConfig(ssl_ciphers=name))

    def talk(port: int) -> str:
        context = client(made)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
        connection.connect()
        found = connection.sock.cipher()  # type: ignore[union-attr]
        connection.close()
        return str(found[0])

    assert served(flags(made, ssl_ciphers=name), talk) in name.split(":")


def flags(made: Certificates, name: str = "first", **more: Any) -> FrontendConfig:
    return FrontendConfig(ssl_certfile=made.cert(name), ssl_keyfile=made.key(name), **more)


def served(frontend: FrontendConfig, talk: Callable[[int], Any]) -> Any:
    """Return talk(port), run in a thread against a server with these flags."""
    app, engine = app_for()

    async def main() -> Any:
        sock = bind(None, 0)
        one = lifecycle.ServerLifecycle(app, engine, frontend)  # type: ignore[arg-type]
        ready = asyncio.Event()
        task = asyncio.ensure_future(one.run(sock, ready.set))
        await ready.wait()
        try:
            return await asyncio.to_thread(talk, sock.getsockname()[1])
        finally:
            one.stop()
            await task

    return asyncio.run(main())


def client(made: Certificates, own: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.cert("authority"))
    context.set_alpn_protocols(["h2", "http/1.1"])  # as browsers and curl do
    if own is not None:
        context.load_cert_chain(made.cert(own), made.key(own))
    return context


def status(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status
    finally:
        connection.close()


def name_of(port: int, context: ssl.SSLContext) -> str:
    """Return the common name of the certificate that the server shows now."""
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        assert connection.sock.selected_alpn_protocol() == "http/1.1"
        shown: Any = connection.sock.getpeercert()
        return str(shown["subject"][0][0][1])
    finally:
        connection.close()


def test_a_client_that_checks_gets_an_answer(made: Certificates) -> None:
    def talk(port: int) -> None:
        assert status(port, client(made)) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            status(port, ssl.create_default_context())

    served(flags(made), talk)


@pytest.mark.parametrize("own", ["client", "stranger", None])
@pytest.mark.parametrize("reqs", [0, 1, 2])
def test_client_certificates(made: Certificates, own: str | None, reqs: int) -> None:
    is_welcome = own == "client" or reqs == 0 or (reqs == 1 and own is None)

    def talk(port: int) -> None:
        context = client(made, own)
        if is_welcome:
            assert status(port, context) == 200
            return
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            status(port, context)

    served(flags(made, ssl_cert_reqs=reqs, ssl_ca_certs=made.cert("authority")), talk)


@pytest.mark.parametrize("refreshes", [True, False])
def test_a_renewed_certificate_is_used(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refreshes: bool
) -> None:
    monkeypatch.setattr(lifecycle, "REFRESH_PERIOD_S", 0.02)
    own = Certificates(folder=tmp_path)
    shutil.copy(made.cert("first"), own.cert("now"))
    shutil.copy(made.key("first"), own.key("now"))

    def talk(port: int) -> None:
        context = client(made)
        assert name_of(port, context) == "first"
        open_one = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
        open_one.request("GET", "/live")
        open_one.getresponse().read()
        shutil.copy(made.cert("second"), own.cert("now"))
        time.sleep(0.1)  # a certificate without its key yet: the old pair stays
        assert name_of(port, context) == "first"
        shutil.copy(made.key("second"), own.key("now"))
        deadline_s = time.monotonic() + (5 if refreshes else 0.2)
        while name_of(port, context) == "first" and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert name_of(port, context) == ("second" if refreshes else "first")
        open_one.request("GET", "/live")
        assert open_one.getresponse().status == 200
        open_one.close()

    served(flags(own, "now", enable_ssl_refresh=refreshes), talk)


def test_a_removed_authority_is_no_longer_trusted(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "REFRESH_PERIOD_S", 0.02)
    authorities = tmp_path / "authorities.pem"
    shutil.copy(made.cert("other"), authorities)

    def talk(port: int) -> None:
        assert status(port, client(made, "stranger")) == 200
        shutil.copy(made.cert("authority"), authorities)
        time.sleep(0.3)
        assert status(port, client(made, "client")) == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
            status(port, client(made, "stranger"))

    more = {"ssl_ca_certs": str(authorities), "ssl_cert_reqs": 2, "enable_ssl_refresh": True}
    served(flags(made, **more), talk)


FAULTS: dict[str, tuple[Callable[[Certificates], dict[str, Any]], str]] = {
    "no certificate file": (
        lambda m: {"ssl_certfile": "/nowhere.pem", "ssl_keyfile": m.key("first")},
        "--ssl-certfile: cannot read /nowhere.pem: No such file",
    ),
    "no key file": (
        lambda m: {"ssl_certfile": m.cert("first"), "ssl_keyfile": "/nowhere.key"},
        "--ssl-keyfile: cannot read",
    ),
    "the key of another": (
        lambda m: {"ssl_certfile": m.cert("first"), "ssl_keyfile": m.key("second")},
        "--ssl-keyfile: .* does not belong to the certificate",
    ),
    "a certificate without its key": (
        lambda m: {"ssl_certfile": m.cert("first")},
        "--ssl-certfile: no certificate and key can be read",
    ),
    "a key without a certificate": (
        lambda m: {"ssl_keyfile": m.key("first")},
        "--ssl-keyfile: TLS needs a certificate",
    ),
    "a locked key": (
        lambda m: {"ssl_certfile": m.cert("first"), "ssl_keyfile": m.key("locked")},
        "--ssl-keyfile: .* protected by a passphrase",
    ),
    "a folder": (
        lambda m: {"ssl_certfile": str(m.folder), "ssl_keyfile": m.key("first")},
        "--ssl-certfile: cannot read .*: Is a directory",
    ),
    "no authorities in the file": (
        lambda m: {
            "ssl_certfile": m.cert("first"),
            "ssl_keyfile": m.key("first"),
            "ssl_ca_certs": m.key("first"),
        },
        "--ssl-ca-certs: no certificates can be read",
    ),
    "clients' certificates without authorities": (
        lambda m: {
            "ssl_certfile": m.cert("first"),
            "ssl_keyfile": m.key("first"),
            "ssl_cert_reqs": 2,
        },
        "--ssl-cert-reqs: .* without certificate authorities",
    ),
    "refresh of nothing": (lambda m: {"enable_ssl_refresh": True}, "--enable-ssl-refresh: "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_told_at_start(made: Certificates, name: str) -> None:
    fields, told = FAULTS[name]
    with pytest.raises(ConfigError, match=told) as found:
        check_frontend(FrontendConfig(**fields(made)))
    assert found.value.fix


def test_one_file_may_hold_both(made: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(made.cert("first")).read_text() + Path(made.key("first")).read_text())
    assert served(FrontendConfig(ssl_certfile=str(both)), lambda p: status(p, client(made))) == 200


def test_no_tls_is_plain_http(made: Certificates) -> None:
    app = FastAPI()
    assert http_server.uvicorn_config(app, FrontendConfig(), None).ssl is None
    with pytest.raises((ssl.SSLError, ConnectionError)):
        served(FrontendConfig(), lambda port: status(port, client(made)))
