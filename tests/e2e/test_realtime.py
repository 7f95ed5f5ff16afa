"""Realtime sessions of a server of a tiny Whisper, as the openai client's own classes see them.

Each text is compared with that of /v1/audio/transcriptions for a file of the same samples.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from dovetail_plugins.apis.realtime.protocol import ALaw, MuLaw
from dovetail_plugins.apis.realtime.sound import samples_of, wav_of
from support.keys import bearer, write_keys
from support.server_process import ServerProcess
from support.tiny_encoder_decoders import write_encoder_decoder

pytestmark = pytest.mark.e2e
RATE_HZ = 24_000
EXAMPLE = Path(__file__).parents[2] / "examples/live_transcript.py"
HEARD = "conversation.item.input_audio_transcription"
BY_HAND = {"turn_detection": None}
WANTED = {"language": "en", "temperature": 0.5, "seed": 3}
"""One temperature, and a seed: a random model writes nothing credible."""


def noise(seconds: float, level: float = 0.1, seed: int = 1, rate_hz: int = RATE_HZ) -> bytes:
    """Return samples of 16 bits."""
    made = np.random.default_rng(seed).standard_normal(int(seconds * rate_hz)) * level * 32768
    return made.clip(-32768, 32767).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("realtime") / "tiny-whisper"
    write_encoder_decoder(made, "WhisperForConditionalGeneration")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    keys = write_keys(
        folder.parent / "keys.jsonl",
        ann={"families": ["audio", "realtime"]},
        bob={"families": ["audio", "chat"]},
        cid={"limits": {"tokens_per_minute": 140, "requests": 1}},
    )
    flags = ["--port", "0", "--dtype", "float32", "--api-keys-file", keys]
    flags += [
        "--stat-loggers",
        "prometheus",
        "accounts",
        "--plugin-options.stat_logger.accounts.folder",
    ]
    flags += [str(folder.parent / "accounts")]
    with ServerProcess(str(folder), *flags, "--served-model-name", "ear") as made:
        yield made.wait_ready()


def sockets_of(server: ServerProcess) -> str:
    return server.url.replace("http", "ws") + "/v1"


def opened(server: ServerProcess, name: str = "ann", query: str = "", **more: Any) -> Any:
    headers = bearer(name) if name else {}
    return connect(f"{sockets_of(server)}/realtime{query}", additional_headers=headers, **more)


def asked(socket: ClientConnection, type: str, **fields: Any) -> dict[str, Any]:
    """Send an event, and return the next one of the server's."""
    socket.send(json.dumps({"type": type, **fields}))
    return read(socket)


def read(socket: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(socket.recv(timeout=60))
    return found


def until(socket: ClientConnection, *ends: str) -> list[dict[str, Any]]:
    found = [read(socket)]
    while found[-1]["type"] not in ends:
        found.append(read(socket))
    return found


def settings(**sound: Any) -> dict[str, Any]:
    return {"type": "transcription", "audio": {"input": {"transcription": WANTED, **sound}}}


def text_of(server: ServerProcess, samples: bytes, rate_hz: int = RATE_HZ, **data: Any) -> str:
    """Return the text of a file of the samples."""
    fields = {**WANTED, **data}
    with server.client(headers=bearer("ann")) as client:
        files = {"file": ("a.wav", wav_of(samples, rate_hz))}
        answer = client.post("/v1/audio/transcriptions", files=files, data=fields)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["text"]
    return text


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")  # the client's own
def test_committed_sound_is_written_as_a_file_of_it_is(server: ServerProcess) -> None:
    sound = noise(2.4)
    client = openai.OpenAI(api_key="sk-ann", websocket_base_url=sockets_of(server))
    with client.realtime.connect(model="ear") as session:
        created = session.recv()
        assert created.type == "session.created"
        assert created.session.type == "transcription"
        session.session.update(session=settings(**BY_HAND))
        assert session.recv().type == "session.updated"
        for first in range(0, len(sound), 9600):
            session.input_audio_buffer.append(audio=in_base64(sound[first : first + 9600]))
        session.input_audio_buffer.commit()
        events = [session.recv() for _ in range(4)]
        while events[-1].type == f"{HEARD}.delta":
            events.append(session.recv())
    names = [event.type for event in events]
    assert names[:3] == [
        "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
    ]  # fmt: skip
    assert events[-1].type == f"{HEARD}.completed"
    pieces = [event.delta or "" for event in events if event.type == f"{HEARD}.delta"]
    assert len(pieces) > 1 and "".join(pieces).strip() == events[-1].transcript
    assert events[-1].transcript == text_of(server, sound)
    assert events[-1].usage.type == "duration" and events[-1].usage.seconds == 3


def test_turns_are_found_in_sound(server: ServerProcess) -> None:
    """Two turns, whose events tell which samples each has; the sound comes in odd pieces."""
    hush = noise(0.7, 0.0005)
    sound = hush + noise(0.9, seed=2) + hush + noise(1.3, seed=3) + hush

    async def main() -> list[Any]:
        client = openai.AsyncOpenAI(api_key="sk-ann", websocket_base_url=sockets_of(server))
        async with client.realtime.connect(model="ear") as session:
            vad = {"type": "server_vad", "prefix_padding_ms": 100, "silence_duration_ms": 300}
            await session.session.update(session=settings(turn_detection=vad))  # type: ignore[arg-type]
            for first in range(0, len(sound), 7002):
                part = in_base64(sound[first : first + 7002])
                await session.input_audio_buffer.append(audio=part)
            events: list[Any] = []
            while sum(event.type == f"{HEARD}.completed" for event in events) < 2:
                async with asyncio.timeout(60):
                    events.append(await session.recv())
                assert not events[-1].type.endswith(("error", "failed")), events[-1]
            return events

    events = asyncio.run(main())
    of = {
        name: [event for event in events if event.type.endswith(name)]
        for name in ("speech_started", "speech_stopped", ".committed", ".completed")
    }
    ids = [event.item_id for event in of["speech_started"]]
    assert all([event.item_id for event in found] == ids for found in of.values())
    assert [event.previous_item_id for event in of[".committed"]] == [None, ids[0]]
    starts = [event.audio_start_ms for event in of["speech_started"]]
    ends = [event.audio_end_ms for event in of["speech_stopped"]]
    assert np.allclose(starts, [600, 2200], atol=21) and np.allclose(ends, [1900, 3900], atol=21)
    per_ms = RATE_HZ * 2 // 1000
    for start, end, done in zip(starts, ends, of[".completed"], strict=True):
        assert done.transcript == text_of(server, sound[start * per_ms : end * per_ms])


def test_sound_of_telephones_and_vllm_clients(server: ServerProcess) -> None:
    """G.711 in both laws, the beta's names of events, and the dialect of vLLM's clients."""
    for kind, form in (("audio/pcmu", MuLaw()), ("audio/pcma", ALaw())):
        data = np.random.default_rng(5).integers(0, 256, 8000, np.uint8).tobytes()
        with opened(server) as socket:
            read(socket)
            wanted = settings(format={"type": kind}, **BY_HAND)
            assert asked(socket, UPDATE, session=wanted)["type"] == "session.updated"
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": in_base64(data)}))
            asked(socket, "input_audio_buffer.commit")
            done = until(socket, f"{HEARD}.completed", "error")[-1]
        samples = samples_of(data, form).astype("<i2").tobytes()
        assert done["transcript"] == text_of(server, samples, form.rate)
    headers = {**bearer("ann"), "OpenAI-Beta": "realtime=v1"}
    with connect(f"{sockets_of(server)}/realtime", additional_headers=headers) as socket:
        read(socket)
        flat = {"input_audio_transcription": WANTED, "input_audio_format": "pcm16"}
        changed = asked(socket, "transcription_session.update", session=flat)
        assert changed["type"] == "transcription_session.updated"
        assert changed["session"]["input_audio_transcription"]["seed"] == WANTED["seed"]
        sound = {"type": "input_audio_buffer.append", "audio": in_base64(noise(0.2))}
        socket.send(json.dumps(sound))
        assert asked(socket, "input_audio_buffer.commit")["type"].endswith("speech_started")
        assert read(socket)["type"] == "input_audio_buffer.committed"
        assert read(socket)["type"] == "conversation.item.created"
    sound_16k = noise(0.5, rate_hz=16_000)
    with opened(server) as socket:
        assert read(socket)["id"].startswith("sess_")
        for event in (
            {"type": "session.update", "model": "ear"},
            {"type": "input_audio_buffer.commit"},
            {"type": "input_audio_buffer.append", "audio": in_base64(sound_16k)},
            {"type": "input_audio_buffer.commit", "final": True},
        ):
            socket.send(json.dumps(event))
        found = until(socket, "transcription.done", "error")
    assert {one["type"] for one in found[:-1]} <= {"transcription.delta"}
    assert "".join(one["delta"] for one in found[:-1]).strip() == found[-1]["text"]


def test_the_example_prints_a_line_for_each_turn(server: ServerProcess) -> None:
    sound = noise(0.5, 0.0005) + noise(1.0) + noise(0.8, 0.0005) + noise(1.0)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), sockets_of(server).removesuffix("/v1")],
        input=sound,
        capture_output=True,
        check=True,
        env={**os.environ, "OPENAI_API_KEY": "sk-ann"},
        timeout=120,
    )
    assert done.stdout.count(b"\n") >= 2 and not done.stderr


APPEND, UPDATE = "input_audio_buffer.append", "session.update"
BAD: list[tuple[Any, str, str]] = [
    (b"\x00\x01", "", "invalid_json"),
    ("{", "", "invalid_json"),
    ("[" * 100_000, "", "invalid_json"),
    ("[1]", "", "invalid_json"),
    ({}, "type", "invalid_value"),
    ({"type": 7}, "type", "invalid_value"),
    ({"type": "input_audio_buffer.eat"}, "type", "invalid_value"),
    ({"type": "response.create"}, "type", "not_supported"),
    ({"type": APPEND}, "", "invalid_value"),
    ({"type": APPEND, "audio": "no base64!"}, "", "invalid_value"),
    ({"type": APPEND, "audio": in_base64(b"odd")}, "audio", "invalid_value"),
    ({"type": "input_audio_buffer.commit"}, "", "input_audio_buffer_commit_empty"),
    ({"type": UPDATE}, "session", "missing"),
    ({"type": UPDATE, "session": {"type": "realtime"}}, "session.type", "task_not_supported"),
    ({"type": UPDATE, "session": {"voice": "x"}}, "session", "invalid_value"),
    (
        {"type": UPDATE, "session": settings(turn_detection={"type": "semantic_vad"})},
        "session.audio.input.turn_detection.type",
        "invalid_value",
    ),
    (
        {
            "type": UPDATE,
            "session": settings(turn_detection={"type": "server_vad", "threshold": 2}),
        },
        "session.audio.input.turn_detection.threshold",
        "invalid_value",
    ),
    ({"type": UPDATE, "session": settings(transcription=None)}, "", ""),
    ({"type": UPDATE, "session": settings(transcription={"model": "none"})}, "model", ""),
    ({"type": UPDATE, "session": settings(transcription={"language": "xx"})}, "language", ""),
    ({"type": UPDATE, "model": "none"}, "model", "model_not_found"),
]


def test_bad_events_are_errors_after_which_the_session_goes_on(server: ServerProcess) -> None:
    with opened(server) as socket:
        before = read(socket)["session"]
        for event, param, code in BAD:
            if isinstance(event, dict):
                event = json.dumps({"event_id": "mine", **event})
            socket.send(event)
            answer = read(socket)
            assert answer["type"] == "error", (event[:99], answer)
            error = answer["error"]
            assert error["message"].endswith("."), error
            assert not param or error["param"] == param, (event[:99], error)
            assert not code or error["code"] == code, (event[:99], error)
            assert error["event_id"] == ("mine" if '"mine"' in str(event) else None)
        after = asked(socket, UPDATE, session=settings(**BY_HAND))
        assert after["type"] == "session.updated" and after["session"]["id"] == before["id"]
        socket.send(json.dumps({"type": APPEND, "audio": in_base64(noise(0.3))}))
        change = settings(format={"type": "audio/pcmu"})
        assert asked(socket, UPDATE, session=change)["error"]["param"].endswith("format")
        assert asked(socket, "input_audio_buffer.clear")["type"] == "input_audio_buffer.cleared"
        assert asked(socket, UPDATE, session=change)["type"] == "session.updated"
        vad = settings(format={"type": "audio/pcmu"}, turn_detection={"type": "server_vad"})
        assert asked(socket, UPDATE, session=vad)["type"] == "session.updated"
        loud = {"type": APPEND, "audio": in_base64(bytes([0, 128] * 4000))}  # half a second
        assert asked(socket, **loud)["audio_start_ms"] == 300  # after as much of 24000 Hz
        with pytest.raises(ConnectionClosed):
            socket.send(json.dumps({"type": APPEND, "audio": "A" * (17 << 20)}))
            read(socket)


def refusal(server: ServerProcess, *args: Any, **more: Any) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as refused, opened(server, *args, **more):
        pass
    response = refused.value.response
    return response.status_code, json.loads(response.body or b"{}").get("error", {}).get("code")


def test_keys_hold_for_websockets(server: ServerProcess) -> None:
    assert refusal(server, "") == (401, "invalid_api_key")
    assert refusal(server, "eve") == (401, "invalid_api_key")
    assert refusal(server, "bob") == (403, "family_not_allowed")
    assert refusal(server, "ann", "?model=none") == (404, "model_not_found")
    words = ["realtime", "openai-insecure-api-key.sk-ann"]
    with connect(f"{sockets_of(server)}/realtime", subprotocols=words) as socket:  # type: ignore[arg-type]
        assert socket.subprotocol == "realtime"
        assert read(socket)["type"] == "session.created"
    words[1] += "x"
    with pytest.raises(InvalidStatus, match="401"):
        connect(f"{sockets_of(server)}/realtime", subprotocols=words)  # type: ignore[arg-type]
    log = "\n".join(server.lines)
    assert "sk-ann" not in log
    with opened(server, "cid", "?api_key=secret") as socket:
        assert refusal(server, "cid") == (429, "rate_limit_exceeded")
        read(socket)
        asked(socket, UPDATE, session=settings(**BY_HAND))
        ends: list[dict[str, Any]] = []
        for seed in range(20):  # the texts of all turns count together
            if ends and ends[-1]["type"].endswith("failed"):
                break
            sound = in_base64(noise(0.3, seed=seed))
            socket.send(json.dumps({"type": APPEND, "audio": sound}))
            asked(socket, "input_audio_buffer.commit")
            ends.append(until(socket, f"{HEARD}.completed", f"{HEARD}.failed")[-1])
    assert ends[0]["type"].endswith("completed"), ends[0]
    assert ends[-1]["error"]["code"] == "rate_limit_exceeded"
    with server.client(headers=bearer("cid")) as client:
        (row,) = client.get("/v1/usage").json()["data"]
    assert row["owner"] == "cid" and row["generated_tokens"] > 10, row
    log = "\n".join(server.lines)
    assert "api_key=***" in log and "secret" not in log
    with server.client(headers=bearer("ann")) as client:
        assert client.get("/v1/realtime").status_code == 426
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x" * 22}
        assert client.get("/v1/responses", headers=upgrade).status_code == 403  # ann's families


def num_running(server: ServerProcess) -> int:
    with server.client(headers=bearer("cid")) as client:
        text = client.get("/metrics").text
    lines = [line for line in text.splitlines() if "num_requests_running{" in line]
    assert lines, text[:999]
    return round(sum(float(line.split()[-1]) for line in lines))


def test_a_client_that_leaves_ends_its_work(server: ServerProcess) -> None:
    """Several sessions at a time; each has minutes of sound to be written."""
    with opened(server) as first, opened(server) as second, opened(server) as third:
        for socket in (first, second, third):
            read(socket)
            asked(socket, UPDATE, session=settings(**BY_HAND))
            socket.send(json.dumps({"type": APPEND, "audio": in_base64(noise(150.0))}))
            asked(socket, "input_audio_buffer.commit")
            assert until(socket, f"{HEARD}.delta", f"{HEARD}.failed")[-1]["type"].endswith("delta")
    deadline_s = time.monotonic() + 30
    while num_running(server) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert num_running(server) == 0
    ended = [line for line in server.lines if "ended after 1 turns: the client left" in line]
    assert len(ended) >= 3


def test_limits_and_the_end_of_a_server(folder: Path) -> None:
    options = ("max_sessions", "2", "idle_s", "1.5", "buffer_mib", "1")
    flags = [f"--plugin-options.api.realtime.{name}" for name in options[::2]]
    pairs = [word for pair in zip(flags, options[1::2], strict=True) for word in pair]
    with ServerProcess(str(folder), "--port", "0", "--dtype", "float32", *pairs) as server:
        server.wait_ready()
        with opened(server, "") as idle, opened(server, "") as busy:
            assert refusal(server, "") == (503, "overloaded")
            read(idle), read(busy)
            half = in_base64(noise(0.7 * 2**20 / RATE_HZ / 2, 0.0001))
            asked(busy, UPDATE, session=settings(**BY_HAND))
            busy.send(json.dumps({"type": APPEND, "audio": half}))
            full = asked(busy, APPEND, audio=half)["error"]
            assert (full["code"], full["param"]) == ("input_audio_buffer_full", "audio")
            busy.send(json.dumps({"type": "input_audio_buffer.clear"}))
            read(busy)
            vad = settings(turn_detection={"type": "server_vad"})
            asked(busy, UPDATE, session=vad)
            loud = in_base64(noise(0.6 * 2**20 / RATE_HZ / 2))
            started = asked(busy, APPEND, audio=loud)
            names = [read(busy)["type"].rpartition(".")[2] for _ in range(2)]  # half is a turn
            assert names == ["speech_stopped", "committed"]
            assert started["type"].endswith("speech_started")
            assert read(idle)["error"]["code"] == "session_idle"
            with pytest.raises(ConnectionClosed) as closed:
                read(idle)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
        foreign = {"origin": "https://evil.example"}
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"{sockets_of(server)}/realtime", additional_headers=foreign)
        with opened(server, "") as last:
            read(last)
            asked(last, UPDATE, session=settings(**BY_HAND))
            last.send(json.dumps({"type": APPEND, "audio": in_base64(noise(2.0))}))
            asked(last, "input_audio_buffer.commit")
            server.process.send_signal(signal.SIGTERM)
            assert until(last, f"{HEARD}.completed", f"{HEARD}.failed")[-1]["type"].endswith("ed")
            with pytest.raises(ConnectionClosed) as closed:
                read(last)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
        assert server.wait() == 0
