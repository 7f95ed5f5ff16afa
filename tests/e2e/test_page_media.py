"""Pictures and sounds from the page reach a model that takes them: its answer in the page is the
one that the API gives for the same file."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.browser import opened_browser, programs
from support.media import tone
from support.server_process import ServerProcess
from support.tiny_media import write_media_checkpoint

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
FLAGS = ("--port", "0", "--max-model-len", "400", "--dtype", "float32", "--served-model-name", "m")
SAMPLING = {"temperature": 0, "max_tokens": 6}


def picture() -> bytes:
    pixels = np.random.default_rng(7).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    file = io.BytesIO()
    PIL.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def image_part(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def sound_part(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


@pytest.mark.parametrize(
    ("architecture", "name", "content", "part"),
    [("LlavaForConditionalGeneration", "a.png", picture, image_part),
     ("Qwen2AudioForConditionalGeneration", "a.wav", tone, sound_part)],
)  # fmt: skip
def test_a_model_gets_the_file(
    architecture: str, name: str, content: Any, part: Any, tmp_path: Path
) -> None:
    programs()
    folder = write_media_checkpoint(tmp_path / "model", architecture)
    file = tmp_path / name
    file.write_bytes(content())
    data = base64.b64encode(file.read_bytes()).decode()
    parts = [{"type": "text", "text": "what?"}, part(data)]
    with ServerProcess(str(folder), *FLAGS) as server:
        server.wait_ready()
        with server.client() as client:
            body = SAMPLING | {"messages": [{"role": "user", "content": parts}]}
            wanted = client.post("/v1/chat/completions", json=body).json()
        with opened_browser(server.url) as page:
            page.size(1280, 860)
            page.open()
            page.wait(lambda: page.text("#model-name") == "m")
            page.click("[aria-label='Options of this chat'].icon-button")
            page.write("#option-extra", json.dumps(SAMPLING))
            page.driver.find_element("css selector", "[type=file][aria-label=Files]").send_keys(
                str(file)
            )
            page.one(".preview")
            page.write("#composer-text", "what?")
            page.click("[aria-label='Send']")
            page.wait(lambda: page.all(".message.assistant [aria-label='Answer again']"))
            kept = page.call("store.js", "m.listed()[0].messages[1]")
    assert kept["error"] is None
    assert kept["content"] == wanted["choices"][0]["message"]["content"]
    assert kept["usage"]["prompt_tokens"] == wanted["usage"]["prompt_tokens"]
