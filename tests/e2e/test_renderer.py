"""A renderer of a user's own file on a whole server, in each of its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
ALPACA = f"{Path(__file__).resolve().parents[2] / 'examples' / 'alpaca.py'}:Alpaca"
FLAGS = ("--renderer", ALPACA, "--plugin-options.renderer.system", "Say yes.")


def test_every_process_renders_by_the_file() -> None:
    turns = [{"role": "user", "content": "Will it rain?"}]
    with ServerProcess("--port", "0", "--api-server-count", "2", *FLAGS) as server:
        server.wait_ready()
        for _ in range(8):  # connections go to either process
            with server.client() as client:
                told = client.post("/tokenize", json={"messages": turns}).json()
                text = client.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"]
                assert text == ("Say yes.\n\n### Instruction:\nWill it rain?\n\n### Response:\n"), (
                    text
                )
        with server.client() as client:
            asked = {"messages": turns, "max_tokens": 4}
            answer = client.post("/v1/chat/completions", json=asked).json()
            assert answer["usage"]["prompt_tokens"] == told["count"]
            refused = client.post("/v1/chat/completions", json=asked | {"chat_template": "{{ 1 }}"})
            assert refused.status_code == 400
