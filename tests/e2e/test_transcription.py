"""A server of a tiny Whisper: the formats, the stream, the windows and the refusals of
transcriptions, as OpenAI's clients see them."""

from __future__ import annotations

import base64
import io
import json
import re
import time
import warnings
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from support.media import tone_by_ffmpeg
from support.server_process import ServerProcess
from support.tiny_encoder_decoders import write_encoder_decoder

pytestmark = pytest.mark.e2e
RATE_HZ = 16_000
PATH = "/v1/audio/transcriptions"
COOL = {"temperature": "0.5"}
"""One temperature: a random model writes nothing credible, and would be asked at all others."""
VERBOSE = {"response_format": "verbose_json"}


def sound(seconds: float, seed: int = 1) -> bytes:
    """Return a WAV file of noise."""
    noise = np.random.default_rng(seed).standard_normal(int(seconds * RATE_HZ)) * 3000
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(noise.astype("<i2").tobytes())
    return made.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speech") / "tiny-whisper"
    write_encoder_decoder(made, "WhisperForConditionalGeneration")
    return made


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    with (
        ServerProcess(str(folder), "--port", "0", "--dtype", "float32") as server,
        server.wait_ready().client() as made,
    ):
        yield made


def asked(client: httpx.Client, seconds: float = 0.8, path: str = PATH, **fields: Any) -> Any:
    files = {"file": ("a.wav", sound(seconds), "audio/wav")}
    return client.post(path, files=files, data={"language": "en", **COOL, **fields})


def test_the_formats_tell_one_text(client: httpx.Client) -> None:
    got = asked(client, seed="3")
    assert got.status_code == 200, got.text
    told = got.json()
    assert told["text"] and told["usage"] == {"type": "duration", "seconds": 1}
    plain = asked(client, response_format="text", seed="3")
    assert plain.text == told["text"] + "\n"
    assert plain.headers["content-type"].startswith("text/plain")


def test_times_are_those_of_the_sound(client: httpx.Client) -> None:
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    told = asked(client, 3.3, seed="3", **fields).json()
    assert (told["task"], told["language"], told["duration"]) == ("transcribe", "english", 3.3)
    segments = told["segments"]
    assert len(segments) > 1 and [one["id"] for one in segments] == list(range(len(segments)))
    starts = [one["start"] for one in segments]
    assert starts == sorted(starts)
    assert all(0 <= one["start"] < one["end"] <= 3.3 + 1e-6 for one in segments)
    assert max(one["seek"] for one in segments) > 100  # behind the first window of 1 s
    joined = "".join(one["text"] for one in segments).strip()
    assert told["text"] == joined


def test_subtitles(client: httpx.Client) -> None:
    srt = asked(client, 2.5, response_format="srt", seed="3").text
    blocks = [block for block in re.split(r"\n\n(?=\d+\n\d\d:)", srt) if block.strip()]
    assert blocks and blocks[0].startswith("1\n")
    assert all(re.match(r"\d+\n\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}\n", b) for b in blocks)
    vtt = asked(client, 2.5, response_format="vtt", seed="3").text
    assert re.match(r"WEBVTT\n\n\d\d:\d\d:\d\d\.\d{3} --> ", vtt)


def test_deltas_add_up_to_the_text(client: httpx.Client) -> None:
    whole = asked(client, 2.5, seed="3").json()["text"]
    lines = asked(client, 2.5, stream="true", seed="3").text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [one["type"] for one in events[:-1]] == ["transcript.text.delta"] * (len(events) - 1)
    assert events[-1]["type"] == "transcript.text.done" and events[-1]["text"] == whole
    assert "".join(one["delta"] for one in events[:-1]).strip() == whole


def test_a_language_is_found_and_a_translation_made(client: httpx.Client) -> None:
    files = {"file": ("a.wav", sound(0.5), "audio/wav")}
    data = {**VERBOSE, **COOL}
    told = client.post(PATH, files=files, data=data).json()
    assert told["language"] in ("english", "german")
    other = asked(client, path="/v1/audio/translations", response_format="verbose_json").json()
    assert other["task"] == "translate"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "words"}, "response_format"),
        ({"language": "fr"}, "language"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "3"}, "temperature"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "line", **VERBOSE}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_refusals_name_the_field(client: httpx.Client, fields: Any, param: str) -> None:
    answer = asked(client, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_words_have_times(client: httpx.Client) -> None:
    fields = {**VERBOSE, "timestamp_granularities[]": ["word", "segment"], "seed": "3"}
    told = asked(client, 2.7, **fields).json()
    words, segments = told["words"], told["segments"]
    assert "".join(told["text"].split()) == "".join("".join(w["word"] for w in words).split())
    starts = [one["start"] for one in words]
    assert starts == sorted(starts) and len(words) > 3
    assert all(0 <= one["start"] <= one["end"] <= 2.7 + 1e-6 for one in words)
    assert all(one["start"] < one["end"] for one in segments)
    alone = asked(client, 2.7, **{**fields, "timestamp_granularities[]": "word"}).json()
    assert alone["words"] == words and "segments" not in alone


@pytest.mark.parametrize("form", ["flac", "mp3", "ogg"])
def test_what_soundfile_writes_is_heard(client: httpx.Client, form: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples, rate_hz = soundfile.read(io.BytesIO(sound(0.8)))
    made = io.BytesIO()
    soundfile.write(made, samples, rate_hz, format=form.upper())
    files = {"file": (f"a.{form}", made.getvalue())}
    got = client.post(PATH, files=files, data={"language": "en", "seed": "3", **COOL})
    assert got.status_code == 200 and got.json()["usage"]["seconds"] == 1


def test_what_telephones_record_is_heard(client: httpx.Client) -> None:
    pytest.importorskip("av")
    files = {"file": ("a.m4a", tone_by_ffmpeg("mp4", "aac"), "audio/mp4")}
    got = client.post(PATH, files=files, data={"language": "en", "seed": "3", **COOL})
    assert got.status_code == 200 and got.json()["usage"]["seconds"] in (1, 2)  # AAC pads a tone


def test_openais_client(client: httpx.Client) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="none", base_url=f"{client.base_url}/v1") as own:
        model = own.models.list().data[0].id
        file = ("a.wav", sound(1.6), "audio/wav")
        words = own.audio.transcriptions.create(
            file=file,
            model=model,
            response_format="verbose_json",
            timestamp_granularities=["word"],
            language="en",
            temperature=0.5,
        ).words
        assert words and all(isinstance(one.word, str) and one.end >= one.start for one in words)
        events = list(
            own.audio.transcriptions.create(
                file=file, model=model, stream=True, language="en", temperature=0.5
            )
        )
        assert [one.type for one in events][-1] == "transcript.text.done"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the client's own, of its type
            assert own.audio.translations.create(file=file, model=model, temperature=0.5).text


def test_a_sound_by_url_and_lines_of_a_batch(
    client: httpx.Client, folder: Path, tmp_path: Path
) -> None:
    from dovetail.cli.main import main

    url = f"data:audio/wav;base64,{base64.b64encode(sound(0.8)).decode()}"
    body = {"file_url": url, "language": "en", "seed": 3, "temperature": 0.5}
    wanted = asked(client, seed="3").json()
    assert client.post(PATH, json=body).json() == wanted
    bodies = [body, {**body, "response_format": "text"}, {"file_url": "file:///etc/passwd"}]
    lines = [
        {"custom_id": str(i), "method": "POST", "url": PATH, "body": one}
        for i, one in enumerate(bodies)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    files = ("-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl"))
    flags = ("--dtype", "float32", "--disable-frontend-multiprocessing")
    main(["run-batch", *files, "--model", str(folder), *flags])
    told = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    answers = {one["custom_id"]: one["response"] for one in told}
    assert answers["0"]["body"] == wanted
    assert answers["1"]["body"] == wanted["text"] + "\n"
    assert answers["2"]["status_code"] == 400


def test_nothing_is_written_for_who_has_left(client: httpx.Client) -> None:
    def num_running() -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(li.split()[-1]) for li in lines if "dovetail:num_requests_running{" in li)

    files = {"file": ("a.wav", sound(60), "audio/wav")}
    with pytest.raises(httpx.ReadTimeout):
        client.post(PATH, files=files, data={"language": "en"}, timeout=1.0)
    limit_s = time.monotonic() + 30
    while num_running() and time.monotonic() < limit_s:
        time.sleep(0.2)
    assert not num_running(), client.get("/health").text + client.get("/load").text


def test_what_is_no_sound(client: httpx.Client) -> None:
    answer = client.post(PATH, files={"file": ("a.wav", b"RIFF nothing", "audio/wav")})
    assert answer.status_code == 400 and "sound" in answer.json()["error"]["message"]
    assert client.post(PATH, data={"model": "x"}).status_code == 400
    assert asked(client, model="another").status_code == 404


def test_a_model_of_speech_chats_with_nobody(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 404 and "transcription" in answer.json()["error"]["message"]
    (card,) = client.get("/v1/models").json()["data"]
    assert card["capabilities"] == ["transcription"]
