"""Flags of the HTTP server on whole servers: a Unix socket, TLS, middleware, limits, the log.

Asked by clients that nobody here wrote: httpx, openai, http.client and ssl.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.certificates import Certificates, make_certificates
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
KEY = {"Authorization": "Bearer second"}
MIDDLEWARE = """
class Stamps:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def stamped(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-class", b"yes")]
            await send(message)
        await self.app(scope, receive, stamped)

async def marks(request, call_next):
    response = await call_next(request)
    response.headers["x-function"] = "yes"
    return response
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frontend")


@pytest.fixture(scope="module")
def made(folder: Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    return make_certificates(folder)


def logs_to(file: Path) -> dict[str, Any]:
    handler = {"class": "logging.FileHandler", "filename": str(file), "formatter": "short"}
    return {
        "version": 1,
        "formatters": {"short": {"format": "%(process)d|%(name)s|%(message)s"}},
        "handlers": {"file": handler},
        "loggers": {"uvicorn": {"handlers": ["file"]}, "dovetail.runner": {"handlers": ["file"]}},
    }


@pytest.fixture(scope="module")
def unix(folder: Path) -> Iterator[ServerProcess]:
    """A server of two processes on a Unix socket, which a killed one has left there."""
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / "s"))
    (folder / "mine.py").write_text(MIDDLEWARE)
    (folder / "log.json").write_text(json.dumps(logs_to(folder / "log.txt")))
    args = [
        "--uds", str(folder / "s"), "--api-server-count", "2", "--api-key", "first", "second",
        "--middleware", f"{folder}/mine.py:Stamps", "--middleware", f"{folder}/mine.py:marks",
        "--h11-max-header-count", "30", "--h11-max-incomplete-event-size", "8192",
        "--log-config-file", str(folder / "log.json"), "--enable-tokenizer-info-endpoint",
        "--file-storage", str(folder / "files"),
    ]  # fmt: skip
    with ServerProcess(*args) as server:
        yield server.wait_ready()


def through(server: ServerProcess) -> httpx.Client:
    """Return a client of a server on a Unix socket."""
    transport = httpx.HTTPTransport(uds=server.url.removeprefix("unix:"))
    return httpx.Client(transport=transport, base_url="http://any", timeout=30, headers=KEY)


def test_a_unix_socket_answers(unix: ServerProcess, folder: Path) -> None:
    assert unix.url == f"unix:{folder}/s"
    for _ in range(6):  # whichever of the two processes takes it
        with through(unix) as client:
            answer = client.post("/v1/chat/completions", json={"messages": QUESTION})
            assert answer.status_code == 200
            assert answer.headers["x-class"] == answer.headers["x-function"] == "yes"
    with through(unix) as client:
        assert client.get("/v1/models", headers={"Authorization": "Bearer x"}).status_code == 401
        info = client.get("/tokenizer_info").json()
        assert "<|im_start|>" in info["chat_template"]
        assert str(folder) not in json.dumps(info)
        settings = {row["name"]: row for row in client.get("/settings").json()["settings"]}
        assert settings["api_server_count"]["origin"] == "command line"
        assert settings["api_key"]["value"] == "***"
    assert len(unix.serving()) == 3
    listening = [c for p in unix.descendants() for c in p.net_connections("tcp")]
    assert listening == []


def test_a_stream_is_not_held_back_by_middleware(unix: ServerProcess) -> None:
    openai = pytest.importorskip("openai")
    with through(unix) as http_client:
        client = openai.OpenAI(api_key="first", base_url="http://any/v1", http_client=http_client)
        model = client.models.list().data[0].id
        started_s = time.monotonic()
        stream = client.completions.create(
            model=model, prompt="One two three", stream=True,
            max_tokens=300, extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(stream)
        first_s = time.monotonic() - started_s
        assert sum(1 for _ in stream) > 20
        assert first_s < 0.5 * (time.monotonic() - started_s)


def num_finished(client: httpx.Client, reason: str) -> float:
    name, label = "dovetail:request_success_total{", f'finished_reason="{reason}"'
    lines = client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(name) and label in line]
    return sum(float(line.split()[-1]) for line in found)


def test_a_client_that_leaves_through_middleware_ends_its_request(unix: ServerProcess) -> None:
    body = {"prompt": "One", "stream": True, "max_tokens": 1500, "ignore_eos": True}
    with through(unix) as client:
        before = num_finished(client, "abort")
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        deadline_s = time.monotonic() + 10  # far more than the request would take by itself
        while num_finished(client, "abort") == before:
            assert time.monotonic() < deadline_s, "it was not ended"
            time.sleep(0.02)


@contextmanager
def only(server: ServerProcess, place: int) -> Iterator[httpx.Client]:
    """Give a client of one of the two API processes: the other is stopped meanwhile."""
    both = [p for p in server.serving() if p.pid != server.engine().pid]
    other = sorted(both, key=lambda process: process.pid)[1 - place]
    other.suspend()
    try:
        with through(server) as client:
            yield client
    finally:
        other.resume()


def test_both_processes_see_a_file_and_a_batch_runs_once(unix: ServerProcess) -> None:
    body = {"prompt": "One", "max_tokens": 2, "ignore_eos": True}
    names = [f"line-{i}" for i in range(8)]
    rows = [{"custom_id": n, "method": "POST", "url": "/v1/completions", "body": body}
            for n in names]  # fmt: skip
    data = "\n".join(map(json.dumps, rows)).encode()
    ask = {"endpoint": "/v1/completions", "completion_window": "24h"}
    batches = []
    with through(unix) as client:
        before = num_finished(client, "length")
    for place in (0, 1):  # one of them runs batches, whichever takes the requests
        with only(unix, place) as client:
            form = {"files": {"file": ("in.jsonl", data)}, "data": {"purpose": "batch"}}
            file = client.post("/v1/files", **form).json()  # type: ignore[arg-type]
        with only(unix, 1 - place) as client:
            assert client.get(f"/v1/files/{file['id']}/content").content == data
            made = client.post("/v1/batches", json={**ask, "input_file_id": file["id"]}).json()
            batches.append((place, made["id"]))
    for place, batch_id in batches:
        with through(unix) as client:
            deadline_s = time.monotonic() + 20
            while (batch := client.get(f"/v1/batches/{batch_id}").json())["status"] != "completed":
                assert time.monotonic() < deadline_s, batch
                time.sleep(0.02)
        with only(unix, place) as client:
            answers = client.get(f"/v1/files/{batch['output_file_id']}/content").text
            assert sorted(json.loads(x)["custom_id"] for x in answers.splitlines()) == names
    with through(unix) as client:
        assert num_finished(client, "length") - before == 2 * len(names)


def status_of(unix: ServerProcess, headers: dict[str, str]) -> int:
    with through(unix) as client:
        try:
            return client.get("/live", headers=headers).status_code
        except (httpx.ReadError, httpx.WriteError):
            return 0  # it was closed while there was more to say


def test_heads_over_the_limits_are_refused(unix: ServerProcess) -> None:
    with through(unix) as kept:
        assert kept.get("/live").status_code == 200
        assert status_of(unix, {f"x-{n}": "a" for n in range(31)}) == 431
        assert status_of(unix, {"x-long": "a" * 9000}) == 431
        assert status_of(unix, {f"x-{n}": "a" * 200 for n in range(20)}) == 200
        assert kept.get("/live").status_code == 200


def test_a_socket_in_use_is_refused(unix: ServerProcess, folder: Path) -> None:
    with ServerProcess("--uds", str(folder / "s")) as second:
        assert second.wait() == 2
        second.reader.join(5)
    assert "is in use" in "\n".join(second.lines[-3:])
    assert not any("engine start-up" in line for line in second.lines)
    with through(unix) as client:
        assert client.get("/live").status_code == 200


def test_the_log_goes_where_the_file_says(unix: ServerProcess, folder: Path) -> None:
    lines = (folder / "log.txt").read_text().splitlines()
    engine = [line for line in lines if line.startswith(f"{unix.engine().pid}|dovetail.runner")]
    access = {line.partition("|")[0] for line in lines if '|uvicorn.access| - "GET /live' in line}
    assert engine
    assert access <= {str(process.pid) for process in unix.descendants()}
    assert access
    assert not any("uvicorn" in line for line in unix.lines)
    assert any("dovetail.server: ready in" in line for line in unix.lines)


def test_the_socket_is_gone_at_the_end(unix: ServerProcess, folder: Path) -> None:
    unix.process.send_signal(signal.SIGTERM)
    assert unix.wait() == 0
    assert not (folder / "s").exists()
    assert not (folder / "s.lock").exists()
    assert unix.orphans(2) == []


@pytest.fixture(scope="module")
def secure(made: Certificates) -> Iterator[ServerProcess]:
    """A server of two processes with TLS, of whose files "now" will be renewed."""
    own = Certificates(folder=made.folder)
    shutil.copy(made.cert("first"), own.cert("now"))
    shutil.copy(made.key("first"), own.key("now"))
    args = [
        "--port", "0", "--ssl-certfile", own.cert("now"), "--ssl-keyfile", own.key("now"),
        "--ssl-ca-certs", made.cert("authority"), "--ssl-cert-reqs", "2", "--enable-ssl-refresh",
        "--api-server-count", "2", "--uvicorn-log-level", "warning", "--enable-log-requests",
        "--enable-log-outputs", "--max-log-len", "3",
    ]  # fmt: skip
    with ServerProcess(*args) as server:
        yield server.wait_ready()


def trusting(made: Certificates, own: str | None = "client") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.cert("authority"))
    if own is not None:
        context.load_cert_chain(made.cert(own), made.key(own))
    return context


def test_tls_with_client_certificates(secure: ServerProcess, made: Certificates) -> None:
    openai = pytest.importorskip("openai")
    assert secure.url.startswith("https://127.0.0.1:")
    with httpx.Client(verify=trusting(made)) as http_client:
        client = openai.OpenAI(
            api_key="k", base_url=f"{secure.url}/v1", http_client=http_client, max_retries=0
        )
        asked: dict[str, Any] = {
            "model": client.models.list().data[0].id, "messages": QUESTION, "temperature": 0
        }  # fmt: skip
        chunks = client.chat.completions.create(stream=True, **asked)
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        assert text == client.chat.completions.create(**asked).choices[0].message.content
    for own in ("stranger", None):
        with pytest.raises(httpx.TransportError), httpx.Client(verify=trusting(made, own)) as bad:
            bad.get(f"{secure.url}/live")
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https", "http") + "/live")
    log = "\n".join(secure.lines)
    assert log.count(": answer 0 'The... (") == 2
    assert "uvicorn" not in log


def name_of(url: str, context: ssl.SSLContext) -> str:
    host, port = url.removeprefix("https://").split(":")
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=10)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        shown: Any = connection.sock.getpeercert()
        return str(shown["subject"][0][0][1])
    finally:
        connection.close()


def test_a_renewed_certificate_is_used_by_every_process(
    secure: ServerProcess, made: Certificates
) -> None:
    context = trusting(made)
    assert {name_of(secure.url, context) for _ in range(4)} == {"first"}
    shutil.copy(made.key("second"), made.key("now"))
    shutil.copy(made.cert("second"), made.cert("now"))
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        names = {name_of(secure.url, context) for _ in range(12)}
        if names == {"second"}:
            break
        time.sleep(0.1)
    assert names == {"second"}
    told = [line for line in secure.lines if "new connections use them" in line]
    assert len(told) == 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--ssl-certfile", "first.pem", "--ssl-keyfile", "second.key"], "does not belong to"),
        (["--middleware", "nowhere.Thing"], "nowhere"),
        (["--log-config-file", "leaf.cnf"], "is not valid JSON"),
    ],
)
def test_faults_are_told_before_the_engine_loads(
    made: Certificates, args: list[str], told: str
) -> None:
    here = [str(made.folder / word) if (made.folder / word).is_file() else word for word in args]
    with ServerProcess("--port", "0", *here) as server:
        assert server.wait() == 2
        server.reader.join(5)
    assert told in "\n".join(server.lines[-4:])
    assert server.lines[-1].startswith("fix: ")
    assert not any("engine start-up" in line or "Traceback" in line for line in server.lines)
