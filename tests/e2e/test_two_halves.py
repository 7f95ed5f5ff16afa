"""`dovetail route`: prompts are computed by one server and answered by another; halves that are
left or lost free both, and cost no answer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.server_process import ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = [3 + (7 * i + i // 9) % 60 for i in range(100)]
ASKED = {"do_remote_decode": True}
FEW = ("--num-gpu-blocks-override", "80")
WHERE = {"kv_ip": "127.0.0.1", "kv_parallel_size": 1}


def server(model: Path, role: str, port: int, *flags: str, peer: int = 0) -> ServerProcess:
    transfer: dict[str, Any] = {
        "kv_connector": "p2p",
        "kv_role": role,
        "kv_port": port,
        "engine_id": role,
    }
    if peer:
        transfer["kv_connector_extra_config"] = {"peers": [f"127.0.0.1:{peer}"]}
    return ServerProcess(
        str(model), "--port", "0", "--dtype", "float32", "--max-model-len", "2048",
        "--hf-overrides", '{"max_position_embeddings": 2048}',
        "--kv-cache-memory-bytes", "40000000",
        "--enable-request-id-headers", "--enable-prompt-tokens-details", "--enable-log-requests",
        "--kv-transfer-config", json.dumps(transfer | WHERE), *flags,
    )  # fmt: skip


class Halves:
    """Two servers, and the one address of both."""

    def __init__(self, model: Path) -> None:
        port = 10_000 + secrets.randbelow(550) * 40
        self.prefill = server(model, "kv_producer", port)
        self.decode = server(model, "kv_consumer", port + 16, "--block-size", "32", *FEW, peer=port)
        urls = [one.wait_ready().url for one in (self.prefill, self.decode)]
        self.route = ServerProcess(
            "--port", "0", "--prefill", urls[0], "--decode", urls[1], command="route"
        ).wait_ready()

    def ask(self, **fields: Any) -> httpx.Response:
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields
        return httpx.post(f"{self.route.url}/v1/completions", json=body, timeout=60)

    def close(self) -> None:
        for one in (self.route, self.prefill, self.decode):
            one.__exit__(None, None, None)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Halves]:
    folder = tmp_path_factory.mktemp("model")
    made = Halves(write_tiny_checkpoint(folder, "LlamaForCausalLM"))
    yield made
    made.close()


def running(one: ServerProcess) -> int:
    load = httpx.get(f"{one.url}/load", timeout=20).json()
    return int(load["running"] + load["waiting"])


def until(told: Any, limit_s: float = 20) -> None:
    deadline_s = time.monotonic() + limit_s
    while not told():
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(0.05)


def test_an_answer_of_two_servers_is_that_of_one(halves: Halves) -> None:
    alone = httpx.post(
        f"{halves.prefill.url}/v1/completions",
        json={"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True},
        timeout=60,
    ).json()
    headers = {"X-Request-Id": "traced-1"}
    both = httpx.post(
        f"{halves.route.url}/v1/completions",
        json={"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True},
        headers=headers,
        timeout=60,
    )
    assert both.json()["choices"][0]["text"] == alone["choices"][0]["text"]
    assert both.json()["usage"]["prompt_tokens_details"] is None, "computed, by the other server"
    assert both.headers["x-request-id"] == "traced-1"
    assert both.headers["x-dovetail-prefill"] == halves.prefill.url
    for one in (halves.prefill, halves.decode):
        until(lambda one=one: any("traced-1" in line for line in one.lines))


def test_a_stream_and_a_chat(halves: Halves) -> None:
    whole = halves.ask().json()["choices"][0]["text"]
    streamed = halves.ask(stream=True).text
    events = [json.loads(e[6:]) for e in streamed.split("\n\n") if e.startswith("data: {")]
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == whole
    chat = httpx.post(
        f"{halves.route.url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "hello " * 20}], "max_tokens": 4},
        timeout=60,
    )
    assert chat.status_code == 200 and "x-dovetail-prefill" in chat.headers
    assert httpx.get(f"{halves.route.url}/v1/models", timeout=20).status_code == 200


def cached(one: ServerProcess, prompt: list[int], **fields: Any) -> int:
    """Return how many tokens of a prompt a server had, asked alone."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields
    answer = httpx.post(f"{one.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_prefix_is_found_under_its_own_salt_and_stays_while_it_is_pinned(halves: Halves) -> None:
    one, many = halves.decode, [[3 + (i * i + n) % 60 for i in range(1500)] for n in range(3)]
    pinned, other, salted = ([n, *PROMPT] for n in (7, 8, 9))
    assert cached(one, salted, cache_salt="mine") == 0
    assert cached(one, salted) == cached(one, salted, cache_salt="yours") == 0
    assert cached(one, salted, cache_salt="mine") == 96
    assert cached(one, pinned, cache_pin_s=60) == cached(one, other) == 0
    for prompt in many:
        cached(one, prompt)
    assert (cached(one, pinned), cached(one, other)) == (96, 0)
    refused = httpx.post(
        f"{one.url}/v1/completions", json={"prompt": PROMPT, "cache_pin_s": -1}, timeout=60
    )
    assert refused.status_code == 400 and "cache_pin_s" in refused.text


def test_what_went_through_is_counted(halves: Halves) -> None:
    halves.ask()
    text = httpx.get(f"{halves.decode.url}/metrics", timeout=20).text
    counted = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("dovetail:kv_transfer") and 'connector="p2p"' in line
    }
    assert counted["dovetail:kv_transfer_loaded_tokens_total"] >= 96
    assert counted["dovetail:kv_transfer_loads_total"] >= 1
    assert counted["dovetail:kv_transfer_saved_bytes_total"] == 0


def test_a_request_at_fault_is_refused_as_ever(halves: Halves) -> None:
    answer = halves.ask(temperature=-1)
    assert answer.status_code == 400 and "temperature" in answer.text


def test_a_client_that_leaves_frees_both_halves(halves: Halves) -> None:
    for _ in range(3):
        body = {"prompt": PROMPT, "max_tokens": 1900, "ignore_eos": True, "stream": True}
        url = f"{halves.route.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as stream:
            lines = stream.iter_lines()  # let go of, it would end the stream
            assert "text_completion" in next(lines)
            until(lambda: running(halves.decode) > 0)
        until(lambda: running(halves.decode) == 0 and running(halves.prefill) == 0)
    with pytest.raises(httpx.ReadTimeout):
        long = [3 + i % 60 for i in range(1900)]
        httpx.post(f"{halves.route.url}/v1/completions", json={"prompt": long}, timeout=0.02)
    until(lambda: running(halves.decode) == 0 and running(halves.prefill) == 0)
    assert halves.ask().status_code == 200


def test_a_dead_prefill_server_costs_time_and_no_answer(halves: Halves) -> None:
    wanted = halves.ask().json()["choices"][0]["text"]
    params = httpx.post(
        f"{halves.prefill.url}/v1/completions",
        json={
            "prompt": PROMPT[:70],
            "max_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": True},
        },
        timeout=60,
    ).json()["kv_transfer_params"]
    assert params["do_remote_prefill"] and params["remote_num_tokens"] == 64
    assert params["remote_engine_id"] == "kv_producer" and params["remote_block_ids"] == [
        0,
        1,
        2,
        3,
    ]
    halves.prefill.process.kill()
    halves.prefill.process.wait()
    answer = halves.ask()
    assert answer.json()["choices"][0]["text"] == wanted
    assert "x-dovetail-prefill" not in answer.headers
    late = httpx.post(
        f"{halves.decode.url}/v1/completions",
        json={"prompt": PROMPT[:70], "max_tokens": 4, "kv_transfer_params": params},
        timeout=60,
    )
    assert late.status_code == 200, late.text
    health = httpx.get(f"{halves.route.url}/health", timeout=20)
    assert health.status_code == 200 and health.json()["prefill"][0]["healthy"] is False
