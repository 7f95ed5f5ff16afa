"""A supervised server is replaced by one with other settings, and no request is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dovetail.cli.main import main
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

LIMIT_S = 60.0
SETTINGS = "port: 0\nenable-dev-endpoints: true\nkv-cache-memory-bytes: 8m\nmax-num-seqs: 4\n"


def until(claim: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_no_request_is_lost_and_what_cannot_start_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From two API processes to one, with connections that stay open and new ones."""
    file = tmp_path / "settings.yaml"
    file.write_text(f"{SETTINGS}api-server-count: 2\n")
    ends: Counter[str] = Counter()
    is_over = threading.Event()

    def ask(url: str, keeps: bool) -> None:
        body = {"prompt": "a b", "max_tokens": 8, "ignore_eos": True}
        limits = httpx.Limits(max_keepalive_connections=5 if keeps else 0)
        with httpx.Client(base_url=url, timeout=60, limits=limits) as client:
            while not is_over.wait(0.1):
                try:
                    ends[str(client.post("/v1/completions", json=body).status_code)] += 1
                except httpx.HTTPError as error:
                    ends[repr(error)] += 1

    def most_rows(url: str) -> int:
        return int(httpx.get(f"{url}/server_info").json()["engine"]["schedule"]["max_rows"])

    with ServerProcess("--config", str(file), command="supervise") as server:
        url = server.wait_ready().url
        until(lambda: httpx.get(f"{url}/deploy").json()["state"] == "serving")
        long = httpx.stream(
            "POST", f"{url}/v1/completions", timeout=60,
            json={"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True},
        )  # fmt: skip
        with ThreadPoolExecutor(4) as pool, httpx.Client(base_url=url) as idle, long as stream:
            assert idle.get("/v1/models").status_code == 200
            lines = stream.iter_lines()
            next(lines)
            asking = [pool.submit(ask, url, keeps) for keeps in (True, False) * 2]
            try:
                file.write_text(SETTINGS.replace(": 4", ": 9"))
                assert main(["deploy", "--url", url]) == 0
                assert capsys.readouterr().out == "server 2 serves\n"
                time.sleep(2.3)  # its connection was open, and is refused nothing
                assert idle.get("/v1/models").status_code == 200
                assert list(lines)[-2] == "data: [DONE]"  # began in the old server
                until(lambda: most_rows(url) == 9)
                file.write_text(SETTINGS.replace("port: 0", "port: 1"))
                assert main(["deploy", "--url", url]) == 1
                assert "stays as it" in capsys.readouterr().err
                file.write_text(f"{SETTINGS}model: /none\n")
                server.process.send_signal(signal.SIGHUP)
                until(lambda: "/none" in httpx.get(f"{url}/deploy").json()["reason"])
            finally:
                is_over.set()
        assert [task.result() for task in asking]
        assert set(ends) == {"200"} and ends["200"] > 30, ends
        found = httpx.get(f"{url}/deploy").json()
        assert (found["generation"], found["state"], found["asked"]) == (2, "failed", 4)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.orphans(5.0) == []


def test_a_server_that_does_not_start_ends_its_supervisor() -> None:
    with ServerProcess("/nowhere", "--port", "0", command="supervise") as server:
        assert server.wait() == 2
        assert any("/nowhere" in line for line in server.lines)
