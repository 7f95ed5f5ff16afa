"""A real model's patch, held to the grammar of the tool `apply_patch` of coding agents.

Run by `make test-real` (see `test_real_models`). NUM_CALLS says how many calls are made each way.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support import server_process
from support.server_process import ServerProcess

lark = pytest.importorskip("lark")
pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
CHAT = "qwen2.5-coder-0.5b-instruct"
NUM_CALLS = int(os.environ.get("NUM_CALLS", "100"))
NUM_AT_ONCE = 10
PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
JUDGE = lark.Lark(PATCH.replace("/(.*)/", "/(.+)/?"))
"""Lark takes no expression that may be empty."""
DESCRIPTION = "Use the `apply_patch` tool to edit files. This is a FREEFORM tool: no JSON."
REQUEST = (
    "The file add.py has one line, `def add(a, b): return a - b`, which must add. Call apply_patch "
    "once, with a patch that removes the line and adds the right one, and nothing else."
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Return a client of a server of the small chat model."""
    folder = os.environ.get("REAL_MODELS")
    assert folder, "REAL_MODELS names no folder: run `make test-real`"
    path = Path(folder) / f"{CHAT}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    server_process.START_LIMIT_S = 600.0
    with ServerProcess(str(path), "--port", "0", "--max-model-len", "4096") as server:
        server.wait_ready()
        with server.client() as made:
            yield made


def call(client: httpx.Client, seed: int, tool: dict[str, Any], **fields: Any) -> str:
    """Return "patch", "other", or "cut" for a call's text that max_tokens cut."""
    body = {"messages": [{"role": "user", "content": REQUEST}], "temperature": 1.0, "seed": seed}
    body |= {"tools": [{"type": "custom", "custom": tool}], "max_tokens": 600}
    body |= {"tool_choice": "required", "parallel_tool_calls": False} | fields
    answer = client.post("/v1/chat/completions", json=body, timeout=3000)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    try:
        JUDGE.parse(calls[0]["custom"]["input"] if calls else "")
    except lark.exceptions.LarkError:
        return "cut" if choice["finish_reason"] == "length" else "other"
    return "patch"


def kinds(client: httpx.Client, tool: dict[str, Any], **fields: Any) -> Counter[str]:
    """Return how many calls of a tool are what."""
    tool = {"name": "apply_patch", "description": DESCRIPTION} | tool
    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        found = Counter(pool.map(lambda seed: call(client, seed, tool, **fields), range(NUM_CALLS)))
    print(found, flush=True)
    return found


def test_a_patch_is_in_its_grammar(client: httpx.Client) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH}}
    # A model this small writes some lines for ever: they are closed before max_tokens.
    held = kinds(client, {"format": form}, structured_outputs={"close_on_length": True})
    advice = f"{DESCRIPTION}\n\nThe input must follow this lark:\n{PATCH}"
    free = kinds(client, {"description": advice})
    assert held == {"patch": NUM_CALLS}
    assert free["patch"] <= NUM_CALLS // 50
