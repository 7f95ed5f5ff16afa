"""Content parts of chat, in every form that clients send, become media items."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.multimodal.content import MediaItem
from dovetail.multimodal.parts import media_item, media_type

URL = "https://a.test/a.png"
DATA = "data:image/png;base64,QUJD"


def item(**fields: Any) -> MediaItem:
    return MediaItem(**{"where": "p", "kind": "image", **fields})


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": URL}}, item(url=URL)),
        ({"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
         item(url=DATA, detail="low")),
        ({"type": "image_url", "image_url": URL}, item(url=URL)),
        ({"image_url": {"url": URL}}, item(url=URL)),
        ({"image_url": URL, "uuid": "u1"}, item(url=URL, uuid="u1")),
        ({"type": "image", "image": URL}, item(url=URL)),
        ({"type": "image", "url": URL}, item(url=URL)),
        ({"type": "image", "image_url": URL}, item(url=URL)),
        ({"type": "input_image", "image_url": URL, "detail": "high"},
         item(url=URL, detail="high")),
        ({"type": "video_url", "video_url": {"url": URL}}, item(kind="video", url=URL)),
        ({"type": "video", "video": "file:///v.mp4"}, item(kind="video", url="file:///v.mp4")),
        ({"type": "audio_url", "audio_url": {"url": URL}}, item(kind="audio", url=URL)),
        ({"type": "audio", "audio": URL}, item(kind="audio", url=URL)),
        ({"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
         item(kind="audio", data="QQ==", format="wav")),
        ({"type": "image_embeds", "image_embeds": "QQ=="}, item(kind="image_embeds", data="QQ==")),
        ({"type": "image_embeds", "image_embeds": {"a": "QQ==", "b": "QQ=="}},
         item(kind="image_embeds", data={"a": "QQ==", "b": "QQ=="})),
        ({"type": "audio_embeds", "audio_embeds": "QQ=="}, item(kind="audio_embeds", data="QQ==")),
        ({"type": "image_url", "image_url": None, "uuid": "u1"}, item(uuid="u1")),
    ],
)  # fmt: skip
def test_a_part_is_a_medium(part: dict[str, Any], expected: MediaItem) -> None:
    assert media_type(part) is not None
    assert media_item(part, "p") == expected


@pytest.mark.parametrize(
    ("part", "where", "what"),
    [
        ({"type": "file", "file": {}}, "p", "files and documents"),
        ({"type": "input_file"}, "p", "files and documents"),
        ({"type": "image_url"}, "p.image_url", "must be a URL"),
        ({"type": "image_url", "image_url": {}}, "p.image_url.url", "must be a URL"),
        ({"type": "image_url", "image_url": 7}, "p.image_url", "must be a URL"),
        ({"type": "image_url", "image_url": "ftp://a/b"}, "p.image_url", "not a URL"),
        ({"type": "image_url", "image_url": "QUJD"}, "p.image_url", "not a URL"),
        ({"type": "image_url", "image_url": "http://a/" + "a" * 9000}, "p.image_url", "characters"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "x"}}, "p.detail", "one of"),
        ({"type": "image_url", "image_url": URL, "uuid": 3}, "p.uuid", "must be text"),
        ({"type": "input_audio", "input_audio": {}}, "p.input_audio", "must hold data"),
        ({"type": "input_audio", "input_audio": {"data": "QQ=="}}, "p.input_audio.format",
         "must be a format"),
        ({"type": "image_embeds", "image_embeds": {}}, "p.image_embeds", "must be a tensor"),
        ({"type": "image_embeds", "image_embeds": {"a": 1}}, "p.image_embeds", "must be a tensor"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused(part: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(RequestError, match=what) as caught:
        media_item(part, "p")
    assert caught.value.where == where


@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {"text": "x"}, {"type": "other"}])
def test_text_is_no_medium(part: dict[str, Any]) -> None:
    assert media_type(part) is None
