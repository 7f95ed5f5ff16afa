"""/v1/audio/speech around a fake engine: faults in the middle, clients that leave, bounds, and how
a text is cut into sentences."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.errors import RequestFault
from dovetail.interfaces.data.pooling_spec import SpeechSpec
from dovetail_plugins.apis.speech.sentences import MAX_CHARS, sentences
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script, fake_pooling, fake_spec
from support.serving import app_for, call_asgi, events_of, send

PATH = "/v1/audio/speech"
SPEAKS = fake_pooling(tasks=("speak",), speech=SpeechSpec(rate_hz=16_000, voices=("default",)))
TEXT = "This is a first sentence of a text. This is the second sentence."


def serving(script: Any = None, **how: Any) -> tuple[FastAPI, FakeAsyncEngine]:
    """Return an application of a model that speaks, and its engine."""
    spec = fake_spec(pooling=SPEAKS, max_model_tokens=4096)
    return app_for(engine=FakeAsyncEngine(script or Script(), spec=spec), **how)


def fails_second(text: str, _: int) -> Script:
    """Return a script that fails for the second sentence."""
    return Script(raises=RequestFault("no sound") if "second" in text else None)


def test_a_fault_in_the_middle_breaks_the_file() -> None:
    app, engine = serving(fails_second)
    with pytest.raises(AssertionError):  # httpx's: the response is not complete
        send(app, "POST", PATH, {"input": TEXT, "response_format": "wav"})
    body = {"input": TEXT, "response_format": "wav", "stream_format": "sse"}
    events = events_of(send(app, "POST", PATH, body))
    assert [one["type"] for one in events] == ["speech.audio.delta", "error"]
    assert "no sound" in events[1]["error"]["message"] and not engine.running
    first = send(app, "POST", PATH, {"input": "The second sentence alone."})
    assert first.status_code == 500 and "no sound" in first.json()["error"]["message"]
    assert app.state.server.admission.num_inside == 0


def test_a_client_that_leaves_ends_the_speech() -> None:
    app, engine = serving(lambda text, _: Script(hangs="second" in text))
    body = {"input": TEXT, "response_format": "wav"}
    for leaves_after in (0, 1):
        heard = asyncio.run(call_asgi(app, PATH, body, leaves_after=leaves_after))
        assert len(heard) == 1, "the first sentence is sent before the second is spoken"
        assert not engine.running and app.state.server.admission.num_inside == 0
    assert len(engine.pooled) == 4


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"input": "x" * 4097}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a"]}, "input"),
        ({"input": "a", "voice": "nova"}, "voice"),
        ({"input": "a", "voice": "x" * 10_000}, "voice"),
        ({"input": "a", "speed": 0.1}, "speed"),
        ({"input": "a", "speed": "NaN"}, "speed"),
        ({"input": "a", "seed": -1}, "seed"),
        ({"input": "a", "response_format": "wma"}, "response_format"),
        ({"input": "a", "stream_format": "x"}, "stream_format"),
        ({"input": "a", "model": "another"}, "model"),
    ],
)
def test_hostile_fields_are_refused(fields: dict[str, Any], where: str) -> None:
    app, engine = serving()
    answer = send(app, "POST", PATH, fields)
    assert answer.status_code in (400, 404) and where in str(answer.json()["error"]["param"])
    assert not engine.pooled and len(answer.content) < 2000


def test_markup_is_text_and_a_full_queue_refuses() -> None:
    app, engine = serving(max_queued=4)
    marked = '<speak><break time="9999s"/>Hello.</speak>'
    assert send(app, "POST", PATH, {"input": marked, "response_format": "pcm"}).status_code == 200
    assert "".join(map(chr, engine.pooled[0][2])) == marked
    hosted = send(app, "POST", "/invocations", {"input": marked, "response_format": "wav"})
    assert (
        hosted.headers["content-type"] == "audio/wav"
        and engine.pooled[1][2:] == engine.pooled[0][2:]
    )
    slow = {"input": "word " * 40, "speed": 0.25, "response_format": "pcm"}
    assert send(app, "POST", PATH, slow).status_code == 200
    assert max(len(ids) for _, _, ids in engine.pooled[2:]) <= 40
    app.state.server.admission.num_inside = 1
    engine.counts = (8, 4)
    answer = send(app, "POST", PATH, {"input": TEXT})
    assert answer.status_code == 503 and answer.headers["retry-after"]
    strict, _ = serving(strict_request_fields=True)
    body = {"input": TEXT, "instructions": "Be glad."}
    assert send(strict, "POST", PATH, body).status_code == 400


def test_sentences_are_the_text() -> None:
    assert sentences("Dr. Who met Mr. Smith at 3.14 o'clock. Then he left!\nBye.") == [
        "Dr. Who met Mr. Smith at 3.14 o'clock. ", "Then he left!\nBye.",
    ]  # fmt: skip
    assert sentences("一个相当长的句子，" * 3 + "到此为止了。第二个句子。")[0].endswith("。")
    rng = random.Random(3)
    for _ in range(200):
        words = ("word", "x" * 300, ". ", "! ", ", ", "\n", "。", "  ", '." ', "é")
        text = "".join(rng.choice(words) for _ in range(rng.randrange(60)))
        pieces = sentences(text)
        assert "".join(pieces) == text and all(0 < len(one) <= MAX_CHARS for one in pieces)
    assert (
        len(sentences("x" * 4096)) == 26
        and len(sentences("x" * 4096, 64)) == 64
        and len(sentences(". " * 2048)) < 200
    )
