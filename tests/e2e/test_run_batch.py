"""`dovetail run-batch` as processes: killed, stopped, gone on with; addresses in and out."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

from support.tiny_berts import write_bert

pytestmark = pytest.mark.e2e
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NUM_LINES = 400
"""Of a run that is killed: seconds of the demo model."""
LIMIT_S = 90.0


def asked(number: int, max_tokens: int) -> dict[str, Any]:
    """Return a line: chat and text in turn, of several lengths."""
    body: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    if number % 2:
        url, body["prompt"] = TEXT, f"One two {number}"
    else:
        url, body["messages"] = CHAT, [{"role": "user", "content": f"What is {number}?"}]
    return {"custom_id": f"id-{number}", "method": "POST", "url": url, "body": body}


def input_of(path: Path, count: int, max_tokens: int = 6) -> Path:
    lines = (json.dumps(asked(number, max_tokens)) for number in range(count))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(autouse=True)
def log_is_left_as_found() -> Iterator[None]:
    """Take back what a command in this process does to its log."""
    logger = logging.getLogger("dovetail")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


class Run:
    """One `dovetail run-batch`, its log read as it comes."""

    def __init__(self, *words: str) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        env = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "run-batch", "--max-num-seqs", "16", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | env,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip() for line in self.process.stdout)

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait(self) -> int:
        """Return the exit status."""
        try:
            status = self.process.wait(LIMIT_S)
        finally:
            self.process.kill()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def until(condition: Any, run: Run) -> Any:
    """Return what `condition()` returns once it is true; fail when the run ends before."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert run.process.poll() is None and time.monotonic() < deadline_s, run.log
        time.sleep(0.005)
    return found


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def results_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_killed_run_is_gone_on_with(tmp_path: Path) -> None:
    source, target = input_of(tmp_path / "in.jsonl", NUM_LINES), tmp_path / "out.jsonl"
    files = ["-i", str(source), "-o", str(target)]
    run = Run(*files)
    until(lambda: num_lines(target) > NUM_LINES // 4, run)
    left = run.children()
    run.process.kill()
    assert run.wait() == -signal.SIGKILL
    answered = num_lines(target)
    assert NUM_LINES // 4 < answered < NUM_LINES
    with target.open("ab") as file:
        file.write(b'{"id":"batch_req_12","custom_id":"id-9')
    _, alive = psutil.wait_procs(left, timeout=3)
    assert alive == []

    metrics = ["--enable-metrics", "--url", "127.0.0.1", "--port", "0"]
    run = Run(*files, *metrics)
    address = until(lambda: re.search(r"metrics at (http://\S+)", run.log), run).group(1)
    text = until(lambda: _scraped(address), run)
    assert "http_requests" in text
    assert httpx.get(address.replace("/metrics", "/v1/models")).status_code == 404
    assert run.wait() == 0, run.log
    results = results_of(target)
    counted = Counter(one["custom_id"] for one in results)
    assert counted == Counter(f"id-{number}" for number in range(NUM_LINES))
    for one in results:
        body = one["response"]["body"]
        kind = "text_completion" if int(one["custom_id"][3:]) % 2 else "chat.completion"
        assert (body["object"], body["usage"]["completion_tokens"]) == (kind, 6)
    assert f"{answered} of {NUM_LINES} lines are answered already" in run.log
    assert f"{NUM_LINES - answered} lines answered in" in run.lines[-1]

    run = Run(*files)
    assert run.wait() == 0
    assert run.lines[-1] == f"{NUM_LINES} lines, all answered before, 0 failed."
    assert not any("load model" in line for line in run.lines)


def _scraped(address: str) -> str:
    try:
        text = httpx.get(address).text
    except httpx.HTTPError:
        return ""
    return text if "/v1/completions" in text else ""


class Store(BaseHTTPRequestHandler):
    """Gives `server.data`, refuses the first PUT and keeps the second."""

    server: Any

    def do_GET(self) -> None:
        self._answer(200, self.server.data)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.puts.append((self.path, data))
        self._answer(503 if len(self.server.puts) == 1 else 200, b"")

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def store() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    made.data, made.puts = b"", []
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_addresses_bad_lines_and_a_signal(store: Any, tmp_path: Path) -> None:
    good = [json.dumps(asked(number, 60)).encode() for number in range(100)]
    bad = [b"no json", json.dumps(asked(1000, 5) | {"url": "/v1/nowhere"}).encode()]
    bad.append(json.dumps(asked(1001, 5) | {"body": {"prompt": 7}}).encode())
    store.data = b"\n".join([*bad, *good])
    base = f"http://127.0.0.1:{store.server_port}"
    words = ["-i", f"{base}/in", "-o", f"{base}/out?sig=secret", "--output-tmp-dir", str(tmp_path)]
    run = Run(*words)
    held = until(lambda: next(tmp_path.glob("results-*"), None), run)
    until(lambda: num_lines(held) >= 20, run)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.log
    num_kept = len(results_of(held))
    assert 20 <= num_kept < 103
    assert (store.puts, list(tmp_path.iterdir())) == ([], [held])

    run = Run(*words)
    assert run.wait() == 1, run.log
    assert "secret" not in run.log
    assert list(tmp_path.iterdir()) == []
    assert [path for path, _ in store.puts] == ["/out?sig=secret"] * 2
    results = [json.loads(line) for line in store.puts[1][1].splitlines()]
    assert len(results) == 103
    failed = [one for one in results if one["error"] or one["response"]["status_code"] != 200]
    assert len({one["custom_id"] for one in results}) == 103
    by_id = {one["custom_id"]: one for one in failed}
    assert set(by_id) == {None, "id-1000", "id-1001"}
    assert by_id[None]["error"]["message"].startswith("line 1: the line is not valid JSON")
    assert by_id["id-1000"]["error"]["code"] == "invalid_url"
    assert by_id["id-1001"]["response"]["body"]["error"]["param"].startswith("prompt")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["-o", "out"], "--input-file: must be given"),
        (["-i", "in.jsonl", "-o", "in.jsonl"], "--output-file: is also the input file"),
        (["-i", "absent", "-o", "out"], "--input-file: there is no file absent"),
        (["-i", "doubled.jsonl", "-o", "out"], "lines 1 and 3 have the same custom_id 'id-0'"),
        (["-i", "in.jsonl", "-o", "out", "--api-key", "k"], "unknown flag --api-key"),
    ],
)
def test_faults_are_found_before_the_model_loads(
    words: list[str],
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from dovetail.cli.main import main

    monkeypatch.setitem(sys.modules, "dovetail.server.app", None)
    monkeypatch.chdir(tmp_path)
    text = input_of(tmp_path / "in.jsonl", 2).read_text()
    (tmp_path / "doubled.jsonl").write_text(text + text)
    assert main(["run-batch", *words]) == 2
    error = capsys.readouterr().err.splitlines()[-2:]
    assert cause in error[0]
    assert error[1].startswith("fix: ")


def test_lines_for_a_model_that_pools(tmp_path: Path) -> None:
    """Vectors, scores and rankings in one file; what the model does not do fails alone."""
    from transformers import AutoTokenizer

    model = write_bert(tmp_path / "bert")
    texts = ["the cat sat.", "a cat", "z"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"input": texts},
        "/score": {"text_1": texts[0], "text_2": texts[1:]},
        "/rerank": {"query": texts[0], "documents": texts[1:]},
        "/pooling": {"input": texts[0], "task": "token_embed"},
        "/classify": {"input": texts[0]},
    }
    lines = (
        {"custom_id": url, "method": "POST", "url": url, "body": body}
        for url, body in bodies.items()
    )
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(json.dumps(line) for line in lines))
    run = Run("-i", str(source), "-o", str(target), "--model", str(tmp_path / "bert"))
    assert run.wait() == 1, run.log
    told = {one["custom_id"]: one["response"] for one in results_of(target)}
    assert told["/classify"]["status_code"] == 404
    assert 'can "embed"' in told["/classify"]["body"]["error"]["message"]
    found = {url: one["body"] for url, one in told.items() if one["status_code"] == 200}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bert")
    with torch.inference_mode():
        told_states = [model(**tokenizer(text, return_tensors="pt")) for text in texts]
    states = [one.last_hidden_state[0] for one in told_states]
    vectors = torch.nn.functional.normalize(torch.stack([one[0] for one in states]), dim=-1)
    ours = torch.tensor([one["embedding"] for one in found["/v1/embeddings"]["data"]])
    torch.testing.assert_close(ours, vectors, rtol=0, atol=1e-4)
    scores = (vectors[1:] @ vectors[0]).tolist()
    assert [one["score"] for one in found["/score"]["data"]] == pytest.approx(scores, abs=1e-4)
    ranked = {one["index"]: one["relevance_score"] for one in found["/rerank"]["results"]}
    assert [ranked[0], ranked[1]] == pytest.approx(scores, abs=1e-4)
    of_tokens = torch.tensor(found["/pooling"]["data"][0]["data"])
    wanted = torch.nn.functional.normalize(states[0], dim=-1)
    torch.testing.assert_close(of_tokens, wanted, rtol=0, atol=1e-4)
