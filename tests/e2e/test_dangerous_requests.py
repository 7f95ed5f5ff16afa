"""Requests that have killed servers: each is refused in words, alone and among running streams.

A case is a file of data/requests: `why` it is dangerous, the `source` where one is known, what
is sent (`body`, `raw`, `raw_parts`, `raw_base64` or `wire`), and the allowed `status`. Long values
are written as {"$repeat": [value, times]} and the like; see `expanded`. Where an answer is allowed,
`gives` is what its text must match. Cases with `server: replay` go to a model that emits scripts,
some of which turn into NaN.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_testing.models import write_replay_checkpoint
from support.server_process import ServerProcess
from support.server_rig import LIMIT_S, NUM_STREAMS, STREAM_TOKENS, Crowd, Rig, demo_rig

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.usefixtures("with_test_models"),
]

FOLDER = Path(__file__).parents[1] / "data" / "requests"
CASES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.json"))
}
NAMES = sorted(CASES, key=lambda name: CASES[name].get("server", "demo"))
MAX_ERROR_BYTES = 4096

FAULTY = '''
"""A logits processor that fails in the place a request names."""

from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.plugin import Info


class Faulty(LogitsProcessor):
    """Fails in the method that the option "at" names."""

    info = Info(summary="fails on request")

    def __init__(self, options, vocab_size):
        super().__init__(options, vocab_size)
        self._rows = {}

    @classmethod
    def wants(cls, params):
        return "faulty" in params.logits_processors

    @classmethod
    def verify(cls, params, vocab_size):
        if params.logits_processors["faulty"].get("at") == "verify":
            raise ValueError("poison in verify")

    def add_row(self, tokens):
        at = tokens.params.logits_processors["faulty"].get("at")
        if at == "add_row":
            raise ValueError("poison in add_row")
        self._rows[tokens.row] = (at, tokens)

    def remove_row(self, row):
        at, _ = self._rows.pop(row, (None, None))
        if at == "remove_row":
            raise ValueError("poison in remove_row")

    def apply(self, logits, rows):
        for index, row in rows:
            at, tokens = self._rows[row]
            if at == "late" and len(tokens.output_ids) == 3:
                logits.fill_(0.0)
            if at == "apply" or (at == "late" and len(tokens.output_ids) == 3):
                raise ValueError("poison in apply")
            if at == "nan":
                logits[index, 7] = float("nan")
'''

GOOD_IDS = [100 + i for i in range(20)]
SCRIPTS: dict[str, dict[str, Any]] = {
    "braces": {"tokens": ()},  # filled in by `scripts`: what a prompt without a cue gets
    "control": {"tokens": GOOD_IDS},
    "stream": {"tokens": [300 + i for i in range(STREAM_TOKENS)], "delay_s": 0.002},
    "nan_0": {"tokens": GOOD_IDS, "nan_at": 0},
    "nan_1": {"tokens": GOOD_IDS, "nan_at": 1},
    "nan_9": {"tokens": GOOD_IDS, "nan_at": 9},
}


def scripts() -> list[dict[str, Any]]:
    """Return the replay model's scripts; the first one opens a tool call and never closes it."""
    vocabulary = json.loads((DEMO_PATH / "tokenizer.json").read_text())["model"]["vocab"]
    call = [vocabulary[letter] for letter in "<tool_call>"]
    braces = {"tokens": [*call, *[vocabulary["{"]] * 500]}
    return [braces if name == "braces" else script for name, script in SCRIPTS.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back; `status` None: the connection was closed without an answer."""

    status: int | None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Crowds:
    """The running crowd: one server's at a time."""

    def __init__(self, rigs: dict[str, Rig]) -> None:
        self._rigs = rigs
        self._name = ""
        self._crowd: Crowd | None = None

    def on(self, name: str) -> Crowd:
        """Return the crowd of this server, started now if need be."""
        if self._crowd is None or self._name != name:
            self.stop()
            self._name, self._crowd = name, Crowd(self._rigs[name])
        return self._crowd

    def stop(self) -> None:
        """End the running crowd and look at what it got."""
        if self._crowd is not None:
            self._crowd.stop()
            assert self._crowd.faults == []
            assert self._crowd.num_whole >= NUM_STREAMS
            self._crowd = None


def expanded(value: Any, cues: dict[str, int]) -> Any:
    """Return a case's value with its {"$word": argument} objects worked out."""
    if isinstance(value, list):
        return [expanded(item, cues) for item in value]
    if not isinstance(value, dict):
        return value
    word, argument = next(iter(value.items()), ("", None))
    if not word.startswith("$"):
        return {key: expanded(item, cues) for key, item in value.items()}
    made = expanded(argument, cues)
    return _WORDS[word](made, cues)


def _nested(key: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        found = {"type": "object", key: {"a": found}}
    return found


_WORDS: dict[str, Callable[[Any, dict[str, int]], Any]] = {
    "$repeat": lambda made, cues: made[0] * made[1],
    "$join": lambda made, cues: "".join(made),
    "$nest": lambda made, cues: _nested(*made),
    "$fields": lambda made, cues: {f"{made[0]}{i}": i for i in range(made[1])},
    "$merge": lambda made, cues: {**made[0], **made[1]},
    "$cue": lambda made, cues: cues[made],
}


def content_of(case: dict[str, Any], cues: dict[str, int]) -> bytes:
    """Return the bytes of a case's request body."""
    if "raw_base64" in case:
        return base64.b64decode(case["raw_base64"])
    if "raw_parts" in case:
        return "".join(expanded(case["raw_parts"], cues)).encode()
    if "raw" in case:
        return str(case["raw"]).encode()
    return json.dumps(expanded(case["body"], cues)).encode() if "body" in case else b""


def sent(case: dict[str, Any], rig: Rig) -> Reply:
    """Send a case and return what came back."""
    if "wire" in case:
        return _sent_raw(case, rig)
    content = content_of(case, rig.cues)
    whole: Any = iter([content]) if case.get("chunked") else content
    response = rig.client.request(
        case.get("method", "POST"),
        case.get("path", "/v1/completions"),
        content=whole,
        headers={"content-type": "application/json"} | case.get("headers", {}),
    )
    return Reply(status=response.status_code, headers=dict(response.headers), body=response.content)


def _sent_raw(case: dict[str, Any], rig: Rig) -> Reply:
    """Write bytes to a socket of their own and read until it is closed or has answered."""
    url = httpx.URL(rig.server.url)
    with socket.create_connection((url.host, url.port or 80), timeout=LIMIT_S) as sock:
        try:
            sock.sendall("".join(expanded(case["wire"], rig.cues)).encode("latin-1"))
            if case.get("hangs_up"):
                return Reply(status=None)
            got = sock.recv(65536)
        except (ConnectionError, BrokenPipeError):
            return Reply(status=None)
    found = re.match(rb"HTTP/1\.1 (\d+)", got)
    return Reply(status=int(found.group(1)) if found else None)


def check_reply(case: dict[str, Any], reply: Reply) -> None:
    """Fail unless the reply is what the case allows, in its dialect's shape."""
    text = reply.body.decode()
    allowed = case["status"] if isinstance(case["status"], list) else [case["status"]]
    if reply.status is None or "wire" in case:
        assert case.get("or_closed")
        assert reply.status is None or reply.status in allowed, reply.status
        return
    assert reply.status in allowed, f"{reply.status}: {text[:500]}"
    if reply.status >= 400:
        check_error(json.loads(text), case)
        assert len(text) <= MAX_ERROR_BYTES
    elif "event-stream" in reply.headers["content-type"]:
        check_events([x[6:] for x in text.splitlines() if x.startswith("data: ")], case)
    else:
        whole = json.loads(text, parse_constant=_refuse_constant)
        if "gives" in case:
            choice = whole["choices"][0]
            given = choice["message"]["content"] if "message" in choice else choice["text"]
            assert re.fullmatch(case["gives"], given), given
    assert "header" not in case or case["header"] in reply.headers


def check_error(body: dict[str, Any], case: dict[str, Any]) -> None:
    """Fail unless this is the dialect's error object, with the words that the case asks for."""
    error = body["error"]
    if case.get("path", "").startswith("/v1/messages"):
        assert body.keys() == {"type", "error", "request_id"}
        assert body["type"] == "error"
    else:
        assert {"message", "type", "param", "code"} <= error.keys()
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["message"]
    assert re.search(case.get("says", ""), error["message"]), error["message"]
    for secret in ("Traceback", str(Path(sys.prefix)), str(DEMO_PATH)):
        assert secret not in error["message"]


def check_events(events: list[str], case: dict[str, Any]) -> None:
    """Fail unless a stream ends as the case says: well, or with an error and no [DONE]."""
    if not case.get("stream_error"):
        assert events[-1] == "[DONE]"
        return
    assert "[DONE]" not in events
    assert len(events) > 1
    check_error(json.loads(events[-1]), case)


def _refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _installed(folder: Path) -> str:
    """Write a distribution with the faulty processor; return an import path that has it."""
    (folder / "poison_faulty.py").write_text(FAULTY)
    about = folder / "poison_faulty-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: poison-faulty\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[dovetail.logits_processor]\nfaulty = poison_faulty:Faulty\n"
    )
    return os.pathsep.join([str(folder), *(path for path in sys.path if path)])


def _replay_rig(server: ServerProcess, model: Path) -> Rig:
    first = json.loads((model / "config.json").read_text())["cue_base"]
    cues = {name: first + i for i, name in enumerate(SCRIPTS)}
    usual = {"temperature": 0, "max_tokens": STREAM_TOKENS}
    return Rig(
        server=server,
        control={"prompt": [5, cues["control"]], "temperature": 0, "max_tokens": 20},
        streams=[{"prompt": [i, cues["stream"]], **usual} for i in range(NUM_STREAMS)],
        cues=cues,
        client=server.client(timeout=LIMIT_S),
    )


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Rig]]:
    paths = _installed(tmp_path_factory.mktemp("faulty"))
    model = write_replay_checkpoint(
        tmp_path_factory.mktemp("replay"), tokenizer_from=DEMO_PATH, scripts=scripts()
    )
    # In bfloat16 two best tokens often tie, and then the company of other rows decides.
    limits = ("--port", "0", "--max-body-bytes", "2000000", "--dtype", "float32")
    env = {"PYTHONPATH": paths}
    with ServerProcess(*limits, env=env) as demo, ServerProcess(str(model), *limits) as replay:
        found = {
            "demo": demo_rig(demo.wait_ready()),
            "replay": _replay_rig(replay.wait_ready(), model),
        }
        with found["demo"].client, found["replay"].client:
            for rig in found.values():
                rig.learn()
            yield found


@pytest.fixture(scope="module")
def crowds(rigs: dict[str, Rig]) -> Iterator[Crowds]:
    found = Crowds(rigs)
    yield found
    found.stop()


def poison(name: str, rig: Rig) -> None:
    """Send a case, as often as it says, and check every reply."""
    case = CASES[name]
    with ThreadPoolExecutor(case.get("copies", 1)) as pool:
        replies = list(pool.map(lambda _: sent(case, rig), range(case.get("copies", 1))))
    for reply in replies:
        check_reply(case, reply)


def test_the_corpus_is_large_and_explained() -> None:
    assert len(CASES) >= 60
    assert all(case["why"] for case in CASES.values())
    fields = {
        "body", "chunked", "copies", "gives", "hangs_up", "header", "headers", "method",
        "or_closed", "path", "raw", "raw_base64", "raw_parts", "says", "server", "source", "status",
        "stream_error", "why", "wire",
    }  # fmt: skip
    assert {key for case in CASES.values() for key in case} <= fields


@pytest.mark.parametrize(
    "company", ["alone", pytest.param("among streams", marks=pytest.mark.full_only)]
)
@pytest.mark.parametrize("name", NAMES)
def test_it_harms_nobody(name: str, company: str, rigs: dict[str, Rig], crowds: Crowds) -> None:
    server = CASES[name].get("server", "demo")
    crowd = crowds.on(server) if company == "among streams" else None
    poison(name, rigs[server])
    rigs[server].check()
    if crowd is not None:
        assert crowd.faults == []


def test_all_at_once(rigs: dict[str, Rig], crowds: Crowds) -> None:
    for server, rig in rigs.items():
        crowd = crowds.on(server)
        names = [name for name in NAMES if CASES[name].get("server", "demo") == server]
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda name, rig=rig: poison(name, rig), names):
                continue
        rig.check()
        assert crowd.faults == []
    crowds.stop()


def test_nothing_is_left_inside(rigs: dict[str, Rig]) -> None:
    for rig in rigs.values():
        load = rig.client.get("/load").json()
        assert not (load["running"] or load["waiting"] or load["inside"])
        text = rig.client.get("/metrics").text
        assert re.search(r"^vllm:gpu_cache_usage_perc\{.*\} 0\.0$", text, re.MULTILINE)
