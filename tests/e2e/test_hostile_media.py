"""Hostile media through HTTP, to a model of pictures and a model of speech: a clear 4xx within two
seconds, the memory back, and a stream that runs meanwhile gets what it would get alone."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dovetail.interfaces.data.media_settings import MIB
from dovetail.multimodal.content import MediaItem
from support.hostile_media import ANSWERS, CASES, WHERE, Stage, fill
from support.media import Site, data_url, picture, tone
from support.server_process import ServerProcess
from support.tiny_encoder_decoders import write_encoder_decoder
from support.tiny_media import write_media_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LIMIT_S, SIZED_LIMIT_S = 2.0, 8.0
"""Of an answer; of one to megabytes, which are read at a bounded rate while others stream."""
MOST_GROWTH = 96 * MIB
TIMEOUTS = ("--image-fetch-timeout", "0.5", "--audio-fetch-timeout", "0.5")
OWN_NAMES = ("inner.test", "mixed.test", "mapped.test", "a page that moves", "a name that moves")
"""What only a resolver of the test's own leads somewhere."""
OF_PICTURES = ("a drawing by URL", "a page", "a name that moves")
"""What is said of them depends on what was expected, or on a resolver of the test's own."""
SIZED = ("a large file", "too much data", "two hours of silence")
"""What is too large for a bound of the loader's own tests alone."""
NUM_LEAST = 64
PAUSE_S = 0.4
"""Between two streams: they need not keep a core busy all the time."""
SPEECH = "/v1/audio/transcriptions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of one case, and words of the answer (None: the path there differs)."""

    name: str
    path: str
    fields: dict[str, Any]
    words: str | None = None


def part_of(made: MediaItem | str) -> dict[str, Any]:
    """Return the part of a message that holds an item."""
    if isinstance(made, str):
        return {"type": "image_url", "image_url": {"url": made}}
    if made.uuid is not None:
        return {"type": "image_url", "image_url": None, "uuid": made.uuid}
    if made.kind == "image_embeds":
        return {"type": "image_embeds", "image_embeds": made.data}
    if made.kind == "video":
        return {"type": "video_url", "video_url": {"url": made.url}}
    return {"type": "input_audio", "input_audio": {"data": made.data, "format": made.format}}


def chat_of(part: dict[str, Any]) -> dict[str, Any]:
    return {"json": {"messages": [{"role": "user", "content": [part]}], "max_tokens": 4}}


def to_pictures(stage: Stage) -> Iterator[Sent]:
    """Yield the cases for a server of a model of pictures that may read a folder and any public
    host."""
    for name, make, words in CASES:
        made = make(stage)
        is_page = isinstance(made, str) and f":{stage.site.port}/" in made
        if is_page or any(one in name for one in OWN_NAMES):
            continue
        is_exact = isinstance(made, str) and name not in SIZED
        yield Sent(name, CHAT, chat_of(part_of(made)), words if is_exact else None)


def to_speech(stage: Stage) -> Iterator[Sent]:
    """Yield the cases for a server of a model of speech that may read a site's pages."""
    for name, make, words in CASES:
        made = make(stage)
        if isinstance(made, MediaItem) and made.kind == "audio":
            url = f"data:audio/wav;base64,{made.data}"
            words = "too l(arge|ong)" if name in SIZED else words
            yield Sent(name, SPEECH, {"json": {"file_url": url}}, words)
        elif isinstance(made, str) and f":{stage.site.port}/" in made and name not in OF_PICTURES:
            yield Sent(name, SPEECH, {"json": {"file_url": made}}, words)
    yield Sent("no sound at all", SPEECH, {"files": {"file": ("a.wav", b"")}}, "empty")
    yield Sent("a picture in a form", SPEECH, {"files": {"file": ("a.wav", picture())}}, "a sound")
    yield Sent("a form cut off", SPEECH, {
        "content": b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\nab",
        "headers": {"content-type": "multipart/form-data; boundary=x"}}, "cut off")  # fmt: skip
    yield Sent("no form", SPEECH, {"content": b"RIFF"}, "form")
    yield Sent("JSON of another kind", SPEECH, {"json": {"file_url": {"a": 1}}}, "another kind")
    yield Sent(
        "a file elsewhere", SPEECH, {"json": {"file_url": "file:///etc/passwd"}}, "not read here"
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Return a folder, and a site that a thread serves."""
    folder = tmp_path_factory.mktemp("media") / "allowed"
    folder.mkdir()
    fill(folder)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    site = Site(ANSWERS)
    asyncio.run_coroutine_threadsafe(site.__aenter__(), loop).result(10)
    yield Stage(site=site, folder=folder.resolve())
    asyncio.run_coroutine_threadsafe(site.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def streamed(client: httpx.Client, path: str, fields: dict[str, Any]) -> str:
    """Return the text of a stream."""
    with client.stream("POST", path, timeout=240, **fields) as answer:
        told = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    chat = [one["choices"][0]["delta"].get("content") or "" for one in told if one.get("choices")]
    return "".join([*chat, *(one.get("delta", "") for one in told if "choices" not in one)])


def memory_bytes(server: ServerProcess) -> int:
    first = psutil.Process(server.process.pid)
    return sum(one.memory_full_info().uss for one in (first, *first.children(recursive=True)))


def attacked(
    server: ServerProcess,
    sent: list[Sent],
    stream: tuple[str, dict[str, Any]],
    good: Callable[[], Any],
) -> None:
    """Send everything while streams run; check answers, times, memory, and the streams."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        good()
        wanted = streamed(client, *stream)
        before, ends, texts = memory_bytes(server), threading.Event(), []

        def keep_streaming() -> None:
            with httpx.Client(base_url=server.url, timeout=240) as own:
                while not ends.wait(PAUSE_S):
                    texts.append(streamed(own, *stream))

        thread = threading.Thread(target=keep_streaming)
        thread.start()
        faults = []
        try:
            for one in sent:
                began_s = time.monotonic()
                answer = client.post(one.path, **one.fields)
                took_s = time.monotonic() - began_s
                error = answer.json().get("error") if answer.status_code >= 400 else None
                told = error["message"] if error else answer.text[:200]
                is_clear = one.words is None or re.search(one.words, told)
                limit_s = SIZED_LIMIT_S if one.name in SIZED else LIMIT_S
                if not 400 <= answer.status_code < 500 or took_s > limit_s or not is_clear:
                    faults.append((one.name, answer.status_code, round(took_s, 2), told[:200]))
        finally:
            ends.set()
            thread.join(240)
        assert not faults, "\n".join(map(str, faults))
        assert texts and set(texts) == {wanted}
        good()
        assert memory_bytes(server) - before < MOST_GROWTH
        assert not Path("/tmp/dovetail-bomb").exists()


def test_a_model_of_pictures(stage: Stage, tmp_path: Path) -> None:
    write_media_checkpoint(tmp_path, "LlavaForConditionalGeneration")
    sent = list(to_pictures(stage))
    assert len(sent) >= NUM_LEAST
    flags = ("--port", "0", "--max-model-len", "400", "--dtype", "float32", *TIMEOUTS)
    place = ("--allowed-local-media-path", str(stage.folder))
    with ServerProcess(str(tmp_path), *flags, *place) as server:
        server.wait_ready()
        seen = chat_of({"type": "image_url", "image_url": {"url": data_url(picture())}})

        def good() -> None:
            assert httpx.post(f"{server.url}{CHAT}", timeout=60, **seen).status_code == 200

        body = {"max_tokens": 120, "temperature": 0, "ignore_eos": True, "stream": True}
        turn = {"messages": [{"role": "user", "content": "count"}]}
        attacked(server, sent, (CHAT, {"json": {**body, **turn}}), good)


def test_a_model_of_speech(stage: Stage, tmp_path: Path) -> None:
    write_encoder_decoder(tmp_path, "WhisperForConditionalGeneration")
    sent = list(to_speech(stage))
    flags = ("--port", "0", "--dtype", "float32", *TIMEOUTS, "--max-audio-clip-filesize-mb", "4")
    with ServerProcess(str(tmp_path), *flags, "--allowed-media-domains", "127.0.0.1") as server:
        server.wait_ready()
        heard = {"files": {"file": ("a.wav", tone(num=16_000))}}
        fields = {"language": "en", "temperature": "0.5", "seed": "3"}

        def good() -> None:
            answer = httpx.post(f"{server.url}{SPEECH}", data=fields, timeout=60, **heard)
            assert answer.status_code == 200

        stream = (SPEECH, {"data": {**fields, "stream": "true"}, **heard})
        attacked(server, sent, stream, good)


def test_every_case_is_for_one_of_them(stage: Stage) -> None:
    names = {one.name for one in (*to_pictures(stage), *to_speech(stage))}
    assert WHERE and len(names) >= NUM_LEAST + 32
