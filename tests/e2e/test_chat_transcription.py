"""A chat model that hears, behind OpenAI's transcription endpoint, against transformers' answer."""

from __future__ import annotations

import base64
import inspect
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from websockets.sync.client import connect

from dovetail_plugins.apis.audio.chat_speech import QUESTIONS, question, without_frame
from dovetail_plugins.apis.audio.form import AudioFile, AudioRequest
from dovetail_plugins.apis.realtime.sound import wav_of
from support.server_process import ServerProcess
from support.tiny_media import write_media_checkpoint

pytestmark = pytest.mark.e2e
RATE_HZ = 16_000
SOUND = np.random.default_rng(3).standard_normal(RATE_HZ // 2).astype("float32") * 0.1
NUM_TOKENS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speech") / "tiny-voxtral"
    return write_media_checkpoint(made, "VoxtralForConditionalGeneration")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    flags = ("--port", "0", "--dtype", "float32", "--max-model-len", str(NUM_TOKENS))
    with (
        ServerProcess(str(folder), *flags) as server,
        server.wait_ready().client() as made,
    ):
        yield made


def sent(client: httpx.Client, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    """Send the sound as a WAV file of 32-bit numbers, which loses nothing."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, SOUND, RATE_HZ, subtype="FLOAT", format="WAV")
    return client.post(f"/v1/audio/{path}", files={"file": ("a.wav", file.getvalue())}, data=fields)


def expected(folder: Path, prompt: str) -> str:
    """Return transformers' greedy answer to a prompt whose sound stands at [AUDIO]."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    hears = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    model = transformers.VoxtralForConditionalGeneration.from_pretrained(folder)
    assert isinstance(model, torch.nn.Module)
    features = hears(SOUND, sampling_rate=RATE_HZ, return_tensors="pt", padding="max_length")
    rows = model.config.audio_config.max_source_positions // 2
    text = prompt.replace("[AUDIO]", "[BEGIN_AUDIO]" + "[AUDIO]" * rows)
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.inference_mode():
        found = model.generate(  # type: ignore[operator]
            input_ids=ids,
            input_features=features.input_features,
            max_new_tokens=NUM_TOKENS - ids.shape[1],
            do_sample=False,
        )
    answer: str = tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)
    return answer


def test_a_model_with_a_mode_for_it_is_asked_by_its_tokens(
    client: httpx.Client, folder: Path
) -> None:
    """Voxtral's prompt has the language and [TRANSCRIBE] after the sound; streamed is the same."""
    text = sent(client, language="en").json()["text"]
    assert text == expected(folder, "[INST][AUDIO][/INST]lang:en[TRANSCRIBE]").strip()
    lines = sent(client, language="en", stream="true").text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == text
    assert len(events) > 20
    assert "".join(one["delta"] for one in events[:-1]).strip() == text


def test_a_realtime_session_is_asked_in_the_same_way(client: httpx.Client) -> None:
    """Its text is the file's, and comes in pieces while the model writes it."""
    data = (SOUND * 32767).astype("<i2").tobytes()
    files = {"file": ("a.wav", wav_of(data, RATE_HZ))}
    answer = client.post("/v1/audio/transcriptions", files=files, data={"language": "en"})
    address = f"{client.base_url}".replace("http", "ws").rstrip("/") + "/v1/realtime"
    found: list[dict[str, Any]] = []
    sound = {"format": {"type": "audio/pcm", "rate": RATE_HZ}, "turn_detection": None}
    heard = {**sound, "transcription": {"language": "en"}}
    session = {"type": "transcription", "audio": {"input": heard}}
    with connect(address) as socket:
        for event in (
            {"type": "session.update", "session": session},
            {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()},
            {"type": "input_audio_buffer.commit"},
        ):
            socket.send(json.dumps(event))
        while not found or not found[-1]["type"].endswith((".completed", "failed", "error")):
            found.append(json.loads(socket.recv(timeout=60)))
    assert found[-1]["transcript"] == answer.json()["text"] != ""
    pieces = [one["delta"] for one in found if one["type"].endswith(".delta")]
    assert len(pieces) > 20 and "".join(pieces).strip() == found[-1]["transcript"]


@pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")  # the client's own
def test_a_realtime_session_answers_sound_as_a_chat_does(client: httpx.Client) -> None:
    """The openai client's classes: an item of sound and text, and a turn that ends by itself."""
    data = (SOUND * 32767).astype("<i2").tobytes()
    file = {"data": base64.b64encode(wav_of(data, RATE_HZ)).decode(), "format": "wav"}
    parts = [{"type": "text", "text": "Hm?"}, {"type": "input_audio", "input_audio": file}]
    message = {"role": "user", "content": parts}
    chat = {"messages": [message], "temperature": 0, "max_tokens": 12}
    expected = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]
    address = f"{client.base_url}".replace("http", "ws").rstrip("/") + "/v1"
    pcm = {"type": "audio/pcm", "rate": RATE_HZ}
    settings: Any = {"type": "realtime", "temperature": 0, "max_output_tokens": 12}
    vad = {"type": "server_vad", "silence_duration_ms": 100}
    settings["audio"] = {"input": {"format": pcm, "turn_detection": vad}}
    item: Any = {"type": "message", "role": "user"}
    in_base64 = base64.b64encode(data).decode()
    sound = {"type": "input_audio", "audio": in_base64}
    item["content"] = [{"type": "input_text", "text": "Hm?"}, sound]
    with openai.OpenAI(api_key="x", websocket_base_url=address).realtime.connect() as session:
        session.session.update(session=settings)
        session.conversation.item.create(item=item)
        session.response.create()
        found: list[Any] = [session.recv()]
        while found[-1].type not in ("response.done", "error"):
            found.append(session.recv())
        said = "".join(one.delta for one in found if one.type == "response.output_text.delta")
        assert said == expected["content"] != ""
        assert found[-1].response.status == "incomplete"
        assert found[-1].response.usage.output_tokens == 12
        hush = base64.b64encode(bytes(RATE_HZ)).decode()
        for part in (hush, in_base64, hush):
            session.input_audio_buffer.append(audio=part)
        while found[-1].type != "error" and len(found) < 999:
            found.append(session.recv())
            if found[-1].type == "response.done":
                break
    names = [one.type for one in found]
    assert names.index("input_audio_buffer.committed") < len(names) - 1
    assert found[-1].type == "response.done" and found[-1].response.output


def test_a_translation_is_asked_for_in_words(client: httpx.Client) -> None:
    """And the answer is another one."""
    translated = sent(client, "translations", response_format="text")
    assert translated.status_code == 200, translated.text
    assert translated.text.strip() != sent(client).json()["text"]


def test_what_such_a_model_cannot_do_is_refused(client: httpx.Client) -> None:
    """Times, and a sound that cannot be read."""
    refused = sent(client, response_format="srt")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"
    refused = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", b"RIFF")})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "file"


def test_families_are_asked_as_their_processors_ask() -> None:
    """The questions are transformers' own defaults."""
    from transformers import AudioFlamingo3Processor, GlmAsrProcessor

    for kind, made in (("glmasr", GlmAsrProcessor), ("audioflamingo3", AudioFlamingo3Processor)):
        parameter = inspect.signature(made).parameters["default_transcription_prompt"]
        assert QUESTIONS[kind] == parameter.default


def test_language_and_prompt_are_part_of_the_question() -> None:
    """The name of a language, and the client's own words at the end."""
    body = AudioRequest(file=AudioFile(), language="de", prompt="Names: Ada.")
    asked = question("glmasr", body)
    assert asked.startswith(QUESTIONS["glmasr"])
    assert "German" in asked
    assert asked.endswith(" Names: Ada.")


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ('The spoken content of the audio is "It\'s so."', "It's so."),
        ("The transcription of the audio is: 'a \"b\" c'.", 'a "b" c'),
        ("The spoken content of the audio is art.", "The spoken content of the audio is art."),
        ("Plain.", "Plain."),
    ],
)
def test_a_sentence_around_a_transcript_is_taken_away(text: str, bare: str) -> None:
    """Only if there are quotation marks around the rest."""
    assert without_frame(text) == bare
