"""The flags for media: what they become, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.multimodal.settings import media_settings
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media_settings import MIB, MediaLimit, MediaSettings


def settings(**fields: Any) -> MediaSettings:
    return media_settings(Config.from_fields(fields).multimodal)


def test_without_flags_no_files_and_any_public_host() -> None:
    assert settings() == MediaSettings()


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"image": 4}, {"image": MediaLimit(count=4)}),
        ("image=4,video=2", {"image": MediaLimit(count=4), "video": MediaLimit(count=2)}),
        ({"images": 1, "audios": 0}, {"image": MediaLimit(count=1), "audio": MediaLimit(count=0)}),
        (
            {"video": {"count": 1, "num_frames": 32, "width": 512, "height": 256}},
            {"video": MediaLimit(count=1, num_frames=32, width=512, height=256)},
        ),
        ({"audio": {"count": 2, "length": 16000}}, {"audio": MediaLimit(count=2, length=16000)}),
    ],
)
def test_limit_mm_per_prompt(given: Any, limits: dict[str, MediaLimit]) -> None:
    assert settings(limit_mm_per_prompt=given).limits == limits


def test_media_io_kwargs() -> None:
    given = {
        "image": {"rgba_background_color": [0, 0, 255]},
        "video": {"num_frames": 8, "fps": 0.5},
        "audio": {"sampling_rate": 16000},
    }
    options = settings(media_io_kwargs=given).options
    assert options.image.rgba_background_color == (0, 0, 255)
    assert (options.video.num_frames, options.video.fps) == (8, 0.5)
    assert options.audio.sampling_rate == 16000


def test_where_media_may_come_from(tmp_path: Path) -> None:
    found = settings(
        allowed_local_media_path=str(tmp_path),
        allowed_media_domains=["Images.Example.com.", "10.0.0.7", "[::1]"],
        media_url_allow_redirects=False,
    )
    assert found.local_path == str(tmp_path.resolve())
    assert found.domains == ("images.example.com", "10.0.0.7", "::1")
    assert found.allows_redirects is False


def test_bounds_of_what_is_fetched() -> None:
    found = settings(
        image_fetch_timeout=1,
        audio_fetch_timeout=2,
        video_fetch_timeout=3,
        max_audio_clip_filesize_mb=7,
    )
    assert found.fetch_timeouts_s == {"image": 1.0, "audio": 2.0, "video": 3.0}
    assert found.max_bytes["audio"] == 7 * MIB


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ({"limit_mm_per_prompt": {"smell": 1}}, "--limit-mm-per-prompt", "smell"),
        ({"limit_mm_per_prompt": {"image": -1}}, "--limit-mm-per-prompt.image.count", "at least 0"),
        ({"limit_mm_per_prompt": {"image": 1.5}}, "--limit-mm-per-prompt.image.count", "whole"),
        ({"limit_mm_per_prompt": {"image": True}}, "--limit-mm-per-prompt.image.count", "whole"),
        ({"limit_mm_per_prompt": {"image": {"length": 1}}}, "--limit-mm-per-prompt.image",
         "length"),
        ({"limit_mm_per_prompt": {"image": 1, "images": 2}}, "--limit-mm-per-prompt", "twice"),
        ({"media_io_kwargs": {"image": 3}}, "--media-io-kwargs", "must hold options"),
        ({"media_io_kwargs": {"video": {"frames": 3}}}, "--media-io-kwargs.video", "frames"),
        ({"media_io_kwargs": {"video": {"num_frames": 0}}}, "--media-io-kwargs.video.num_frames",
         "other than 0"),
        ({"media_io_kwargs": {"video": {"num_frames": 10**9}}},
         "--media-io-kwargs.video.num_frames", "from -1 to"),
        ({"media_io_kwargs": {"video": {"fps": "x"}}}, "--media-io-kwargs.video.fps", "a number"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": [1, 2]}}},
         "--media-io-kwargs.image.rgba_background_color", "three numbers"),
        ({"allowed_local_media_path": "/no/such/folder"}, "--allowed-local-media-path",
         "not a folder"),
        ({"allowed_media_domains": ["https://a.test/x"]}, "--allowed-media-domains",
         "not the name"),
        ({"allowed_media_domains": ["a.test:80"]}, "--allowed-media-domains", "not the name"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_flag(fields: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        settings(**fields)
    assert (caught.value.where or "").startswith(where)
