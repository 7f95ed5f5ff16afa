"""/v1/audio/speech with a real engine: OpenAI's client, every format, streams, voices."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail_plugins.apis.speech.sentences import sentences
from support.tiny_vits import VOICES, sound_of, write_vits
from support.whole_app import by_openai

soundfile = pytest.importorskip("soundfile")
av = pytest.importorskip("av")
pytest.importorskip("openai")
TEXT = "Hello world, this is one sentence! And here comes another one. A third one follows it."
ONE = "hello world"
RATES = {"mp3": 22_050, "opus": 48_000, "aac": 22_050, "flac": 22_050, "wav": 22_050}


def decoded(data: bytes) -> tuple[np.ndarray, int]:
    """Return the samples that FFmpeg finds in a file, and their rate."""
    with av.open(io.BytesIO(data)) as file:
        frames = [frame.to_ndarray() for frame in file.decode(audio=0)]
        return np.concatenate(frames, axis=1)[0], file.streams.audio[0].rate


def test_openais_client_hears_what_transformers_speaks(tmp_path: Path) -> None:
    model, tokenizer = write_vits(tmp_path, **VOICES)
    pieces = sentences(TEXT)
    assert len(pieces) == 3
    wanted = np.concatenate(
        [sound_of(model, tokenizer, one, 5 + at, speaker_id=1) for at, one in enumerate(pieces)]
    )

    async def work(client: Any, http: Any) -> None:
        speech = client.audio.speech
        asked = {"model": str(tmp_path), "input": TEXT, "voice": "1", "extra_body": {"seed": 5}}
        whole = await speech.create(**asked, response_format="wav")
        samples, rate = soundfile.read(io.BytesIO(whole.content), dtype="float32")
        assert rate == 22_050
        np.testing.assert_allclose(samples, wanted, atol=1e-4)
        again = await speech.create(**asked, response_format="wav")
        assert again.content == whole.content
        async with speech.with_streaming_response.create(**asked, response_format="wav") as stream:
            parts = [part async for part in stream.iter_bytes()]
        assert b"".join(parts) == whole.content
        for name, rate in RATES.items():
            data = (await speech.create(**asked, response_format=name)).content
            heard, found = decoded(data)
            assert found == rate
            seconds = len(heard) / rate
            assert seconds == pytest.approx(len(wanted) / 22_050, abs=0.2), name
        plain = (await speech.create(**asked, response_format="pcm")).content
        assert len(plain) / 2 == pytest.approx(len(wanted) * 24_000 / 22_050, abs=2)
        await _events(http, plain, sum(len(tokenizer(one)["input_ids"]) for one in pieces))
        await _short(http, sound_of(model, tokenizer, ONE, 0, speaker_id=2, speaking_rate=1.0))
        figures = (await http.get("/metrics")).text
        assert "dovetail:request_success_total" in figures
        assert (await http.get("/v1/models")).json()["data"][0]["capabilities"] == ["speak"]

    options = json.dumps({"api": {"speech": {"voices": {"alloy": 2}}}})
    by_openai(tmp_path, "--plugin-options", options, work=work)


async def _events(http: Any, plain: bytes, num_tokens: int) -> None:
    """Check a stream of events: its parts joined are the file."""
    body = {"input": TEXT, "voice": {"id": "1"}, "seed": 5, "response_format": "pcm",
            "stream_format": "sse", "instructions": "Be glad."}  # fmt: skip
    answer = await http.post("/v1/audio/speech", json=body)
    assert answer.headers["x-dovetail-ignored-fields"] == "instructions"
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert [one["type"] for one in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert b"".join(base64.b64decode(one["audio"]) for one in events[:-1]) == plain
    usage = {"input_tokens": num_tokens, "output_tokens": 0, "total_tokens": num_tokens}
    assert events[-1] == {"type": "speech.audio.done", "usage": usage}


async def _short(http: Any, wanted: np.ndarray) -> None:
    """Check a file of one sentence, whose length is known; the operator's name of a voice, and the
    speed."""
    names = (await http.get("/v1/audio/voices")).json()
    assert names == {"voices": ["0", "1", "2", "alloy"]}
    body = {"input": ONE, "voice": "alloy", "speed": 2, "response_format": "wav"}
    answer = await http.post("/v1/audio/speech", json=body)
    file = soundfile.SoundFile(io.BytesIO(answer.content))
    assert len(file) == len(wanted) and int(answer.headers["content-length"]) > 2 * len(wanted)
    np.testing.assert_allclose(file.read(dtype="float32"), wanted, atol=1e-4)
