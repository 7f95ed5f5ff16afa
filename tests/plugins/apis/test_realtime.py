"""Realtime sessions without a server: turns, telephones' sound, settings, and who may connect."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from dovetail.errors import RequestError, RequestFault
from dovetail_plugins.apis.realtime.protocol import ALaw, MuLaw, Pcm, ServerVad, Settings, updated
from dovetail_plugins.apis.realtime.sound import samples_of
from dovetail_plugins.apis.realtime.turns import Started, Stopped, TurnDetector
from dovetail_testing.fakes.async_engine import Script
from support.keys import bearer, write_keys
from support.serving import app_for

RATE_HZ = 16_000


def noise(seconds: float, level_db: float, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal(int(seconds * RATE_HZ))
    return (made * 32768 * 10 ** (level_db / 20)).clip(-32768, 32767).astype(np.int16)


def turns(*parts: np.ndarray, piece: int = 1000, at: int = 0, **given: Any) -> list[float]:
    """Return the seconds at which turns begin and end, in turn."""
    sound = np.concatenate(parts)
    detector = TurnDetector(ServerVad(prefix_padding_ms=0, **given), RATE_HZ, at)
    cuts = range(0, len(sound), piece)
    found = [one for first in cuts for one in detector.push(sound[first : first + piece])]
    assert [type(one) for one in found] == [(Started, Stopped)[i % 2] for i in range(len(found))]
    assert detector.is_speaking == (len(found) % 2 == 1)
    return [one.at / RATE_HZ for one in found]


@pytest.mark.parametrize("piece", [77, 1000, 10**6])
def test_a_turn_is_loud_sound_up_to_a_silence(piece: int) -> None:
    """However the sound is cut; short gaps belong to the turn, and clicks begin none."""
    hush, voice, click = noise(0.6, -80), noise(0.5, -20), noise(0.03, -10)
    sound = (hush, voice, noise(0.2, -80), voice, hush, click, hush)
    assert turns(*sound, piece=piece) == pytest.approx([0.6, 2.3], abs=0.021)
    late = turns(*sound, piece=piece, at=RATE_HZ, silence_duration_ms=100)
    assert late == pytest.approx([1.6, 2.2, 2.3, 2.9], abs=0.021)


def test_a_threshold_and_the_background_decide_what_is_loud() -> None:
    quiet = (noise(0.5, -80), noise(1.0, -45), noise(1.0, -80))
    assert turns(*quiet) == []
    assert turns(*quiet, threshold=0.2) == pytest.approx([0.5, 2.0], abs=0.021)
    fan = noise(12.0, -35)
    found = turns(noise(0.5, -80), fan, fan[: RATE_HZ * 2] + noise(2.0, -15), fan[:RATE_HZ])
    assert len(found) == 4  # the fan is a turn until it is known, and then what is above it
    assert found[1] < 11 and found[2:] == pytest.approx([12.5, 15.0], abs=0.05)


def test_telephones_sound_is_libsndfiles() -> None:
    data = bytes(range(256))
    for form, name in ((MuLaw(), "ULAW"), (ALaw(), "ALAW")):
        expected, _ = soundfile.read(
            io.BytesIO(data), samplerate=8000, channels=1, format="RAW", subtype=name, dtype="int16"
        )
        assert np.array_equal(samples_of(data, form), expected), name
    assert samples_of(b"\x01\x00\xff\xff", Pcm()).tolist() == [1, -1]


def test_an_update_changes_what_it_names() -> None:
    first = updated(Settings(), {"audio": {"input": {"transcription": {"language": "de"}}}})
    vad = {"type": "server_vad", "threshold": 0.7}
    second = updated(first, {"audio": {"input": {"turn_detection": vad}}})
    sound = second.audio.input
    assert sound.transcription is not None and sound.transcription.language == "de"
    assert sound.turn_detection == ServerVad(threshold=0.7) and sound.format == Pcm()
    other = {"type": "audio/pcma"}
    third = updated(second, {"audio": {"input": {"turn_detection": None, "format": other}}})
    assert (third.audio.input.turn_detection, third.audio.input.format) == (None, ALaw())
    hint = {"audio": {"input": {"noise_reduction": {"type": "near_field"}}}}
    assert updated(third, hint) == third
    with pytest.raises(RequestError) as refused:
        updated(third, {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 1}}}})
    assert refused.value.where == "session.audio.input.format.rate"


def test_a_model_that_cannot_hear_takes_no_session() -> None:
    app, _ = app_for()
    with (
        pytest.raises(WebSocketDenialResponse) as refused,
        TestClient(app).websocket_connect("/v1/realtime?intent=transcription"),
    ):
        pass
    assert refused.value.status_code == 404
    assert refused.value.json()["error"]["code"] == "task_not_supported"


def text(said: str, role: str = "user", **more: Any) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": said}], **more}
    return {"type": "conversation.item.create", "item": item}


def talked(socket: Any, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Send events; return the server's up to the end of an answer, or an error."""
    for event in events:
        socket.send_json(event)
    found = [socket.receive_json()]
    while found[-1]["type"] not in ("response.done", "error"):
        found.append(socket.receive_json())
    return found


def test_a_chat_model_answers_with_text() -> None:
    """The events are those that the openai client knows, and the prompt has all that was said."""
    from openai.types.realtime import RealtimeServerEvent
    from pydantic import TypeAdapter

    app, engine = app_for(Script(pieces=["<think>hm</think>", "Hello", " you"]))
    known: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    limits = {"instructions": "Be kind.", "max_output_tokens": 50}
    with TestClient(app).websocket_connect("/v1/realtime?model=fake") as socket:
        created = socket.receive_json()
        assert created["session"]["type"] == "realtime"
        assert created["session"]["audio"]["input"]["turn_detection"] is None  # it cannot hear
        update = {"type": "session.update", "session": {"type": "realtime", **limits}}
        found = [created, *talked(socket, update, text("hi"), {"type": "response.create"})]
        answer = found[-1]["response"]
        said = "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta")
        assert said == answer["output"][0]["content"][0]["text"] == "Hello you"
        assert answer["status"] == "completed"
        assert answer["usage"]["output_tokens"] == len("<think>hm</think>Hello you")
        again = talked(socket, text("and?"), {"type": "response.create"})
        aside = {
            "type": "response.create",
            "response": {
                "conversation": "none",
                "instructions": "",
                "input": [text("alone")["item"]],
                "metadata": {"topic": "x"},
            },
        }
        last = talked(socket, aside)
    for event in (*found, *again, *last):
        assert type(known.validate_python(event)).__name__ != "BaseModel"
    assert last[-1]["response"]["metadata"] == {"topic": "x"}
    assert not any(event["type"].startswith("conversation.") for event in last)
    prompts = [engine.tokenizer.decode(more["prompt"]) for _, _, more in engine.asked]
    wanted = (["Be kind.", "hi"], ["Be kind.", "hi", "Hello you", "and?"], ["alone"])
    for prompt, parts in zip(prompts, wanted, strict=True):
        places = [prompt.find(part) for part in parts]
        assert -1 not in places and places == sorted(places), (prompt, parts)
    assert "Be kind." not in prompts[2] and "Hello" not in prompts[2]
    assert [params.max_tokens for _, params, _ in engine.asked] == [50] * 3


def test_answers_end_as_they_are_told() -> None:
    """By a limit, by the client, by the engine's fault; and one is written at a time."""

    def script(prompt: str, index: int) -> Script:
        if "short" in prompt:
            return Script(pieces=["a"], finish_reason="length")
        if "fault" in prompt:
            return Script(pieces=["a"], raises=RequestFault("NaN in the logits."))
        return Script(pieces=["a"] * 200, step_s=0.02)

    app, _ = app_for(script)
    with TestClient(app).websocket_connect("/v1/realtime") as socket:
        socket.receive_json()
        socket.send_json(text("hi", id="first"))
        assert socket.receive_json()["item"]["id"] == "first"
        found = talked(socket, {"type": "response.create"}, {"type": "response.create"})
        assert found[-1]["error"]["code"] == "conversation_already_has_active_response"
        done = talked(socket, {"type": "response.cancel"})[-1]["response"]
        assert (done["status"], done["status_details"]["reason"]) == (
            "cancelled", "client_cancelled",
        )  # fmt: skip
        limit = {"type": "response.create", "response": {"instructions": "short"}}
        done = talked(socket, limit)[-1]["response"]
        assert (done["status"], done["status_details"]["reason"]) == (
            "incomplete", "max_output_tokens",
        )  # fmt: skip
        for instructions, reason in (("word " * 9999, "context_length"), ("fault", "NaN")):
            asked = {"type": "response.create", "response": {"instructions": instructions}}
            done = talked(socket, asked)[-1]["response"]
            assert done["status"] == "failed" and reason in str(done["status_details"])
        for event, param, code in (
            ({"type": "response.cancel"}, "response_id", "response_cancel_not_active"),
            ({"type": "conversation.item.delete", "item_id": "no"}, "item_id", "item_not_found"),
            (text("x", id="first"), "item.id", "item_exists"),
            ({**text("x"), "previous_item_id": "no"}, "previous_item_id", "item_not_found"),
            ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "audio", "task_not_supported"),
            (
                {"type": "session.update", "session": {"type": "transcription"}},
                "session.type",
                "task_not_supported",
            ),
            (
                {"type": "session.update", "session": {"output_modalities": ["audio"]}},
                "session.output_modalities[0]",
                "invalid_value",
            ),
            (
                {"type": "session.update", "session": {"tools": [{"type": "function"}]}},
                "session.tools",
                "invalid_value",
            ),
        ):
            error = talked(socket, event)[-1]["error"]
            assert (error["param"], error["code"]) == (param, code), error
        socket.send_json({"type": "conversation.item.delete", "item_id": "first"})
        assert socket.receive_json()["type"] == "conversation.item.deleted"


def test_the_beta_has_other_names_for_the_same() -> None:
    app, _ = app_for(Script(pieces=["Hello"]))
    headers = {"openai-beta": "realtime=v1"}
    settings = {"modalities": ["text", "audio"], "voice": "x", "max_response_output_tokens": 9}
    sound = {"input_audio_format": "g711_alaw", "turn_detection": None}
    with TestClient(app).websocket_connect("/v1/realtime", headers=headers) as socket:
        assert socket.receive_json()["session"]["input_audio_format"] == "pcm16"
        update = {"type": "session.update", "session": {**settings, **sound}}
        updated_to, *found = talked(socket, update, text("hi"), {"type": "response.create"})
        session = updated_to["session"]
        assert (session["modalities"], session["max_response_output_tokens"]) == (["text"], 9)
        assert session["input_audio_format"] == "g711_alaw"
        names = [event["type"] for event in found]
        assert names.count("conversation.item.created") == 2 and "response.text.delta" in names
        assert not {"conversation.item.added", "conversation.item.done"} & set(names)
        hears_not = {"type": "transcription_session.update", "session": sound}
        assert talked(socket, hears_not)[-1]["error"]["code"] == "task_not_supported"


def test_a_withdrawn_key_ends_its_sessions(tmp_path: Path) -> None:
    file = tmp_path / "keys.jsonl"
    app, engine = app_for(api_keys_file=write_keys(file, ann={}, bob={}))
    with TestClient(app).websocket_connect("/v1/realtime", headers=bearer("ann")) as socket:
        socket.receive_json()
        done = talked(socket, text("hi"), {"type": "response.create"})[-1]
        assert done["response"]["status"] == "completed"
        assert engine.owners == [("ann", 1.0)]
        write_keys(file, bob={})
        os.utime(file, (1, 1))  # another time than before, however fast this is
        deadline_s = time.monotonic() + 10
        while "error" not in done and time.monotonic() < deadline_s:
            done = talked(socket, {"type": "response.create"})[-1]
        assert done["error"]["code"] == "invalid_api_key"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1008
