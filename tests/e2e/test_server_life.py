"""A whole server in its own processes: answers, drains, dies in order, leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest

from dovetail.server.launch.records import records_folder
from dovetail_plugins.bench.startup import spans_of
from dovetail_plugins.commands._running import running_servers
from support.server_process import ServerProcess
from support.warm_children import cold_children

pytestmark = pytest.mark.e2e
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG: dict[str, Any] = {"prompt": "One two three", "max_tokens": 400, "ignore_eos": True}
NUM_DISCONNECTS = 200


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerProcess]:
    """One that is started as users do, not forked."""
    with cold_children():
        started = ServerProcess("--port", "0", "--api-key", "k")
    with started as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def keyless() -> Iterator[ServerProcess]:
    with ServerProcess("--port", "0") as server:
        yield server.wait_ready()


@pytest.fixture
def own() -> Iterator[ServerProcess]:
    with ServerProcess("--port", "0", "--max-engine-restarts", "0") as server:
        yield server.wait_ready()


KEY = {"Authorization": "Bearer k"}


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"messages": QUESTION, "temperature": 0} | fields
    return client.post("/v1/chat/completions", json=body)


def events_of(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if line.startswith("data: "):
            yield line[6:] if line == "data: [DONE]" else json.loads(line[6:])


def stream_in_thread(url: str, got: list[Any]) -> threading.Thread:
    """Begin a stream of 32 answers, which takes seconds; `got` grows by its events."""
    body = LONG | {"stream": True, "n": 32}

    def run() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            got.extend(events_of(response.iter_lines()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Any, seconds: float) -> float:
    """Return how long it took until `condition()`; fail after `seconds`."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < seconds, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - start_s


@cache
def watcher() -> httpx.Client:
    """Return a client made once: making one takes longer than a short stream on a busy machine."""
    return httpx.Client()


def is_running(url: str) -> bool:
    return bool(watcher().get(f"{url}/load").json()["running"])


def test_streamed_and_whole_answers_are_the_same(shared: ServerProcess) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="k", base_url=f"{shared.url}/v1") as client:
        asked = {"model": client.models.list().data[0].id, "messages": QUESTION, "temperature": 0}
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = client.chat.completions.create(stream=True, **asked)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    assert "Paris" in whole


def test_the_log_tells_the_phases_and_no_key(shared: ServerProcess) -> None:
    text = "\n".join(shared.lines)
    for phase in ("config", "engine", "application"):
        assert f"start: {phase} took" in text
    with shared.client(headers=KEY) as client:
        assert "dovetail:start_phase_seconds" in client.get("/metrics").text
        assert client.get("/v1/models").status_code == 200
    assert httpx.get(f"{shared.url}/v1/models").status_code == 401


def test_a_body_over_the_limit_is_answered_before_the_socket_closes(shared: ServerProcess) -> None:
    data = b"x" * (40 << 20)
    for chunked in (False, True):
        connection = http.client.HTTPConnection(shared.url.removeprefix("http://"), timeout=60)
        pieces = (data[i : i + (1 << 20)] for i in range(0, len(data), 1 << 20))
        body: Any = pieces if chunked else data
        connection.request(
            "POST", "/v1/completions", body, KEY | {"Content-Type": "application/json"},
            encode_chunked=chunked,
        )  # fmt: skip
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read())["error"]["code"] == "body_too_large"
        assert answer.headers["Connection"] == "close"


def test_head(shared: ServerProcess) -> None:
    with httpx.Client() as client:
        answer = client.head(f"{shared.url}/v1/models", headers=KEY)
        assert (answer.status_code, answer.content) == (200, b"")
        assert client.head(f"{shared.url}/health").status_code == 200


def test_web_pages_elsewhere_are_refused(keyless: ServerProcess) -> None:
    with httpx.Client(base_url=keyless.url) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/health", headers={"Origin": "http://localhost:3000"}).is_success
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            answer = client.get("/health", headers=headers)
            assert answer.status_code == 403
            assert "programs of its own machine" in answer.json()["error"]["message"]


def test_allowed_origins_written_out_are_meant() -> None:
    with ServerProcess("--port", "0", "--allowed-origins", "*") as server:
        url = server.wait_ready().url
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert httpx.get(f"{url}/health", headers=headers).status_code == 200


def test_an_engine_that_stands_still_is_not_ready(keyless: ServerProcess) -> None:
    children = [child for child in keyless.descendants() if child.pid != keyless.process.pid]
    for child in children:
        child.suspend()
    try:
        answers: list[httpx.Response] = []

        def stands_still() -> bool:
            answers.append(watcher().get(f"{keyless.url}/ready"))
            return answers[-1].status_code == 503

        wait_for(stands_still, 30)
        assert "stands still" in answers[-1].json()["error"]["message"]
    finally:
        for child in children:
            child.resume()
    wait_for(lambda: watcher().get(f"{keyless.url}/ready").status_code == 200, 10)


def test_it_listens_on_loopback_only(shared: ServerProcess) -> None:
    listening = [
        c.laddr
        for process in (shared.descendants())
        for c in process.net_connections(kind="tcp")
        if c.status == "LISTEN"
    ]
    assert listening == []
    assert shared.url.startswith("http://127.0.0.1:")


def test_a_taken_port_is_told_with_its_fix() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        # What is wrong with the model is not even looked for.
        with ServerProcess("/no/such/model", "--port", str(port)) as server:
            assert server.wait() == 2
            server.reader.join(5)
    last = "\n".join(server.lines[-10:])
    assert f"port {port} is in use" in last
    assert "--port" in last
    assert not any("loaded" in line for line in server.lines)


def test_sigterm_lets_running_work_finish(own: ServerProcess) -> None:
    got: list[Any] = []
    thread = stream_in_thread(own.url, got)
    wait_for(lambda: is_running(own.url), 30)
    (listed,) = [one for one in running_servers() if one.pid == own.process.pid]
    assert (listed.url, listed.names) == (own.url, ("dovetail-demo",))
    own.process.send_signal(signal.SIGTERM)
    with own.client() as client:
        wait_for(lambda: client.get("/ready").status_code == 503, 1)
        assert client.get("/health").status_code == 200
        assert chat(client).status_code == 503
    thread.join(60)
    assert got[-1] == "[DONE]"
    assert got[-2]["choices"][0]["finish_reason"] == "length"
    assert own.wait() == 0
    assert not (records_folder() / f"{own.process.pid}.json").exists()
    assert own.orphans(2) == []


def test_a_second_signal_ends_at_once(own: ServerProcess) -> None:
    got: list[Any] = []
    stream_in_thread(own.url, got)
    wait_for(lambda: is_running(own.url), 30)
    own.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    own.process.send_signal(signal.SIGINT)
    own.wait(5)
    assert own.orphans(2) == []


def test_what_does_not_finish_in_time_gets_an_error() -> None:
    with ServerProcess("--port", "0", "--shutdown-timeout", "0") as server:
        server.wait_ready()
        got: list[Any] = []
        thread = stream_in_thread(server.url, got)
        wait_for(lambda: is_running(server.url), 10)
        server.process.send_signal(signal.SIGTERM)
        thread.join(20)
        assert "error" in got[-1]
        assert "[DONE]" not in got
        assert server.wait() == 0
        assert server.orphans(2) == []


def test_a_killed_engine_is_seen_within_a_second(own: ServerProcess) -> None:
    got: list[Any] = []
    thread = stream_in_thread(own.url, got)
    wait_for(lambda: is_running(own.url), 30)
    own.engine().kill()
    with own.client() as client:
        seconds = wait_for(lambda: client.get("/health").status_code == 503, 1)
        assert seconds < 1
        assert client.get("/live").status_code == 200
        assert chat(client).status_code == 503
    thread.join(10)
    assert got[-1]["error"]["type"] == "engine_dead"
    assert own.wait(8) != 0
    assert own.orphans(2) == []


@pytest.mark.cold_start
def test_a_killed_server_leaves_no_child(own: ServerProcess) -> None:
    assert own.descendants()
    own.process.kill()
    assert own.orphans(2) == []
    own.wait(5)
    assert not [one for one in running_servers() if one.pid == own.process.pid]
    assert not (records_folder() / f"{own.process.pid}.json").exists()


def test_disconnects_free_everything(keyless: ServerProcess) -> None:
    chance = random.Random(0)

    async def one(client: httpx.AsyncClient) -> None:
        stream = chance.random() < 0.7
        limit_s = chance.choice([0.001, 0.01, 0.05, 0.2])
        body = LONG | {"stream": stream}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                async with client.stream("POST", "/v1/completions", json=body) as response:
                    async for _ in response.aiter_bytes():
                        continue

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(base_url=keyless.url, timeout=30, limits=limits) as client:
            for _ in range(NUM_DISCONNECTS // 20):
                await asyncio.gather(*(one(client) for _ in range(20)))

    asyncio.run(all_of_them())

    def is_free() -> bool:
        load = watcher().get(f"{keyless.url}/load").json()
        return not (load["running"] or load["waiting"] or load["inside"])

    wait_for(is_free, 1)
    with keyless.client() as client:
        answer = chat(client).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
        wait_for(lambda: " 0.0" in usage_line(client), 3)
    assert keyless.process.poll() is None


def usage_line(client: httpx.Client) -> str:
    text = client.get("/metrics").text
    lines = [x for x in text.splitlines() if x.startswith("vllm:gpu_cache_usage_perc{")]
    return lines[0] if lines else ""


def count_of(text: str, name: str) -> float:
    """Return the sum of a metric's samples."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_several_api_processes() -> None:
    with ServerProcess("--port", "0", "--api-server-count", "2") as server:
        server.wait_ready()
        assert len(server.serving()) == 3
        for _ in range(12):
            with server.client() as client:
                assert "Paris" in chat(client).json()["choices"][0]["message"]["content"]
        with server.client() as client:
            text = client.get("/metrics").text
        counted = [x for x in text.splitlines() if x.startswith("vllm:request_success_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in counted) == 12
        tokens = [x for x in text.splitlines() if x.startswith("vllm:generation_tokens_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in tokens) < 12 * 40
        # What the engine tells of its steps is counted by the parent, which answers nothing.
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f"vllm:{name}{{" in text, name
        for name in ("prompt_tokens_total", "prefix_cache_queries_total"):
            assert count_of(text, f"vllm:{name}") > 0, name
        assert {"imports", "engine"} <= {span.name for span in spans_of(text)}
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.orphans(2) == []


@pytest.mark.cold_start
def test_a_killed_parent_of_several_leaves_no_child() -> None:
    with ServerProcess("--port", "0", "--api-server-count", "2") as server:
        server.wait_ready()
        server.process.kill()
        assert server.orphans(2) == []


def test_an_engine_that_is_given_up_ends_several_api_processes() -> None:
    flags = ("--api-server-count", "2", "--max-engine-restarts", "1")
    with ServerProcess("--port", "0", *flags) as server:
        server.wait_ready()
        for _ in range(2):
            server.engine().kill()
            with server.client() as client:
                wait_for(lambda: client.get("/health").status_code == 503, 1)
                chat(client)  # waits for the engine, or for its end
        assert any("as often as --max-engine-restarts allows" in line for line in server.lines)
        assert server.wait(10) != 0
        assert server.orphans(2) == []
