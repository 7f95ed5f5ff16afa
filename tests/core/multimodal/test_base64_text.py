"""Base64 of clients: what a browser takes is taken, and nothing else. Expectations by Python's own
decoders."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import textwrap
import urllib.parse

import pytest

from dovetail.errors import RequestError
from dovetail.multimodal.base64_text import plain_base64


@pytest.mark.parametrize("seed", range(50))
def test_blanks_and_missing_padding_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    data = chance.randbytes(chance.randint(0, 40))
    text = base64.b64encode(data).decode()
    text = text.rstrip("=") if chance.random() < 0.5 else text
    text = "".join(c + chance.choice(["", "", "\n", "\r\n", " ", "\t", "\f"]) for c in text)
    assert base64.b64decode(plain_base64(text), validate=True) == data


@pytest.mark.parametrize("text", ["A", "AAAAA", "AA-_", "A=AA", "A\vAA", "=", "AA==="])
def test_what_no_browser_takes_is_no_base64(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        base64.b64decode(plain_base64(text), validate=True)


def test_media_and_tensors_in_lines() -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save

    from dovetail.multimodal.embeds import decode_embeddings

    tensor = torch.arange(64, dtype=torch.float32).reshape(4, 16)
    text = base64.b64encode(save({"x": tensor})).decode()
    lines = "\r\n".join(textwrap.wrap(text, 76))
    found = decode_embeddings({"x": lines}, len(text))
    assert torch.equal(found["x"], tensor)
    with pytest.raises(RequestError):
        decode_embeddings({"x": "é"}, 100)


def test_data_urls_in_lines_and_percent_signs() -> None:
    pil = pytest.importorskip("PIL.Image")
    from dovetail.interfaces.data.media_settings import MediaSettings
    from dovetail.multimodal.content import MediaItem
    from dovetail.multimodal.loader import load_once

    out = io.BytesIO()
    pil.new("RGB", (5, 7), (9, 8, 7)).save(out, "PNG")
    text = base64.b64encode(out.getvalue()).decode()
    forms = [text, "\n".join(textwrap.wrap(text, 20)), urllib.parse.quote(text, safe=""),
             text.rstrip("=") + " "]  # fmt: skip
    urls = [f"data:image/png;base64,{form}" for form in forms]
    items = [MediaItem(kind="image", url=url, where="x") for url in urls]
    loaded = asyncio.run(load_once(MediaSettings(), items))
    assert len({medium.digest for medium in loaded}) == 1
