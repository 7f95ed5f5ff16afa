"""Media that are what they say: what they become, and what a broken decoder leaves behind."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
import safetensors.torch
import torch
from PIL import Image

from dovetail.errors import ConfigError, Overloaded, RequestError
from dovetail.interfaces.data.media_settings import MediaLimit, MediaSettings
from dovetail.multimodal import extra
from dovetail.multimodal.content import LoadedMedium, MediaItem
from dovetail.multimodal.decode import MediaDecoder
from dovetail.multimodal.loader import MediaLoader
from support.media import b64, clip, data_url, picture, sine, tone, tone_by_ffmpeg


def load(
    *items: MediaItem,
    settings: MediaSettings | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[LoadedMedium]:
    async def run() -> list[LoadedMedium]:
        loader = MediaLoader(settings or MediaSettings())
        try:
            return await loader.load(items, options)
        finally:
            await loader.close()

    return asyncio.run(run())


def image(data: bytes) -> MediaItem:
    return MediaItem(kind="image", url=data_url(data, "image/png"), where="i")


def sound(data: bytes) -> MediaItem:
    return MediaItem(kind="audio", data=b64(data), format="x", where="a")


def video(data: bytes) -> MediaItem:
    return MediaItem(kind="video", url=data_url(data), where="v")


def content(found: LoadedMedium) -> Any:
    return found.content


def test_images_of_every_format_are_red_and_blue() -> None:
    forms = ("PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG")
    for form, found in zip(forms, load(*(image(picture(f)) for f in forms)), strict=True):
        pixels = content(found).pixels
        assert pixels.shape == (24, 32, 3) and pixels.dtype == numpy.uint8
        assert abs(pixels[12, 4].astype(int) - (255, 0, 0)).max() < 12, form
        assert abs(pixels[12, 28].astype(int) - (0, 0, 255)).max() < 12, form


def test_what_is_transparent_has_the_wanted_colour_behind_it() -> None:
    file = io.BytesIO()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(file, "PNG")
    (white,) = load(image(file.getvalue()))
    assert (content(white).pixels == 255).all()
    (blue,) = load(
        image(file.getvalue()), options={"image": {"rgba_background_color": [0, 0, 255]}}
    )
    assert (content(blue).pixels == (0, 0, 255)).all()
    assert white.digest != blue.digest


def test_photos_stand_upright() -> None:
    file = io.BytesIO()
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned clockwise
    Image.open(io.BytesIO(picture())).save(file, "JPEG", exif=turned)
    (found,) = load(image(file.getvalue()))
    pixels = content(found).pixels
    assert pixels.shape == (32, 24, 3)
    assert pixels[4, 12, 0] > 200 and pixels[28, 12, 2] > 200


def test_moving_pictures_give_their_first_frame_and_deep_ones_eight_bits() -> None:
    moving, deep = io.BytesIO(), io.BytesIO()
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    Image.fromarray(numpy.full((4, 4), 0x80FF, "u2")).save(deep, "PNG")
    first, gray = load(image(moving.getvalue()), image(deep.getvalue()))
    assert (content(first).pixels == (255, 0, 0)).all()
    assert (content(gray).pixels == 0x80).all()


@pytest.mark.parametrize(
    "data",
    [
        tone("WAV", 44100, 44100),
        tone("FLAC", 44100, 44100),
        tone_by_ffmpeg("mp3", "libmp3lame"),
        tone_by_ffmpeg("mp4", "aac"),
        tone("OGG", 44100, 44100),
        tone_by_ffmpeg("matroska", "libopus", 48000),
    ],
    ids=["wav", "flac", "mp3", "m4a", "ogg", "webm"],
)
def test_sounds_become_samples_at_the_wanted_rate(data: bytes) -> None:
    (found,) = load(sound(data), options={"audio": {"sampling_rate": 16000}})
    got = content(found)
    assert got.rate_hz == 16000 and got.samples.dtype == numpy.float32
    assert abs(len(got.samples) - 16000) < 1600
    middle = got.samples[4000:12000]
    spectrum = numpy.abs(numpy.fft.rfft(middle))
    assert numpy.argmax(spectrum) == round(440 * len(middle) / 16000)
    assert abs(middle.max() - 0.5) < 0.1


def test_sound_at_its_own_rate_is_exact_and_channels_are_averaged() -> None:
    import soundfile

    file = io.BytesIO()
    left = sine(1000, 8000)
    soundfile.write(
        file, numpy.stack([left, numpy.zeros(1000, "f4")], 1), 8000, "FLOAT", format="WAV"
    )
    (found,) = load(sound(file.getvalue()))
    assert content(found).rate_hz == 8000
    assert numpy.array_equal(content(found).samples, left / 2)


@pytest.mark.parametrize(
    ("form", "codec"), [("mp4", "libx264"), ("matroska", "libx264"), ("avi", "mpeg4")]
)
def test_frames_of_a_video_are_those_at_equal_distances(form: str, codec: str) -> None:
    (found,) = load(video(clip(50, form, codec)), options={"video": {"num_frames": 6}})
    got = content(found)
    assert got.frames.shape == (6, 48, 64, 3)
    assert got.frame_indices == (0, 10, 20, 29, 39, 49)
    assert (got.num_frames, got.fps) == (50, 10.0)
    shown = got.frames[:, 24, 32].mean(axis=-1)
    assert numpy.abs(shown - numpy.array([0, 50, 100, 145, 195, 245])).max() < 4


def test_fps_lowers_the_number_of_frames_and_minus_one_takes_all() -> None:
    slow, every = (
        content(load(video(clip(50)), options={"video": options})[0])
        for options in ({"fps": 1}, {"num_frames": -1})
    )
    assert len(slow.frame_indices) == 5 and slow.frame_indices[-1] == 49
    assert every.frame_indices == tuple(range(50))


def test_embeddings_keep_their_values() -> None:
    values = torch.randn(3, 8, dtype=torch.bfloat16)
    file = io.BytesIO()
    torch.save(values, file)
    data = {"embeds": b64(file.getvalue()),
            "grid": b64(safetensors.torch.save({"x": torch.tensor([[1, 2, 4]])}))}  # fmt: skip
    item = MediaItem(kind="image_embeds", data=data, where="e")
    tensors = content(load(item)[0]).tensors
    assert torch.equal(tensors["embeds"], values)
    assert tensors["grid"].tolist() == [[1, 2, 4]]


def test_files_of_the_allowed_local_media_path(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(picture())
    item = MediaItem(kind="image", url=f"file://{tmp_path}/a%20b.png", where="f")
    settings = MediaSettings(local_path=str(tmp_path.resolve()))
    found, same = load(item, image(picture()), settings=settings)
    assert found.digest == same.digest
    with pytest.raises(RequestError, match="not read here"):
        load(item)


def test_counts_are_checked_before_anything_is_fetched() -> None:
    settings = MediaSettings(limits={"image": MediaLimit(count=1)})
    there = MediaItem(kind="image", url="http://127.0.0.1/", where="second")
    with pytest.raises(RequestError, match="at most 1 images") as caught:
        load(image(picture()), there, settings=settings)
    assert caught.value.where == "second"


@pytest.mark.parametrize(
    ("item", "limits", "words"),
    [
        (image(picture()), {"image": MediaLimit(width=16)}, "32 x 24 pixels; at most 16 x 24"),
        (video(clip(5)), {"video": MediaLimit(height=8)}, "64 x 48 pixels; at most 64 x 8"),
        (video(clip(50)), {"video": MediaLimit(num_frames=4)}, "32 frames would be taken"),
        (sound(tone()), {"audio": MediaLimit(length=100)}, "8000 samples; at most 100"),
    ],
)
def test_sizes_above_the_limits_are_refused(
    item: MediaItem, limits: dict[str, MediaLimit], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        load(item, settings=MediaSettings(limits=limits))


def test_a_request_cannot_raise_what_is_bounded() -> None:
    for options in ({"image": {"max_pixels": 1 << 27}}, {"video": {"frames": 1}}, {"smell": {}}):
        with pytest.raises(RequestError) as caught:
            load(image(picture()), options=options)
        assert (caught.value.where or "").startswith("media_io_kwargs")


def test_a_decoder_that_is_killed_ends_its_request_alone() -> None:
    async def run() -> None:
        decoder = MediaDecoder(num_workers=1)
        loader = MediaLoader(MediaSettings(), decoder=decoder)
        await loader.load([image(picture())])
        os.kill(decoder.pids[0], signal.SIGKILL)
        with pytest.raises(RequestError, match="decoder broke") as caught:
            await loader.load([image(picture())])
        assert caught.value.status == 400
        assert len(await loader.load([image(picture())])) == 1
        await loader.close()

    asyncio.run(run())


def test_what_takes_too_long_is_ended_while_the_event_loop_goes_on() -> None:
    async def run() -> None:
        limits = {"image": 10.0, "video": 0.3, "audio": 10.0}
        decoder = MediaDecoder(num_workers=2, time_limits_s=limits)
        loader = MediaLoader(MediaSettings(), decoder=decoder)
        await loader.load([image(picture()), image(picture())])
        long = video(clip(900, size=(320, 240)))
        work = asyncio.create_task(loader.load([long], {"video": {"num_frames": 900}}))
        late_s = 0.0
        while not work.done():
            at_s = time.monotonic()
            await asyncio.sleep(0.01)
            late_s = max(late_s, time.monotonic() - at_s - 0.01)
        with pytest.raises(RequestError, match="takes longer than"):
            await work
        assert late_s < 0.25
        await loader.close()

    asyncio.run(run())


def test_memory_of_the_decoder_is_limited() -> None:
    async def run() -> None:
        decoder = MediaDecoder(memory_bytes=768 << 20)
        loader = MediaLoader(MediaSettings(), decoder=decoder)
        with pytest.raises(RequestError, match="memory") as caught:
            await loader.load(
                [video(clip(400, "avi", "mpeg4", (640, 480)))], {"video": {"num_frames": -1}}
            )
        assert caught.value.status == 400
        assert len(await loader.load([image(picture())])) == 1
        await loader.close()

    asyncio.run(run())


def test_without_the_packages_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name == "av" else name)
    with pytest.raises(ConfigError, match="not installed: av") as caught:
        MediaLoader(MediaSettings())
    assert 'pip install "dovetail-llm[mm]"' in str(caught.value)


def test_a_decoder_that_cannot_start_is_the_server_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        decoder = MediaDecoder(num_workers=1)
        loader = MediaLoader(MediaSettings(), decoder=decoder)
        before = psutil.Process().num_fds()
        with monkeypatch.context() as patch:
            for place in NO_DESCRIPTORS:
                patch.setattr(*NO_DESCRIPTORS[place])
                with pytest.raises(Overloaded) as caught:
                    await loader.load([image(picture())])
                assert caught.value.status == 503
        assert psutil.Process().num_fds() == before
        assert len(await loader.load([image(picture())])) == 1
        await loader.close()

    asyncio.run(run())


def _none_left(*args: Any, **fields: Any) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


NO_DESCRIPTORS: dict[str, tuple[str, Any]] = {
    "channel": ("dovetail.processes.child_channel.spawn", _none_left),
    "file": ("os.memfd_create", _none_left),
}


def test_a_request_cut_while_its_values_are_read_leaves_the_file_of_others_alone() -> None:
    async def run() -> None:
        decoder = MediaDecoder(num_workers=1)
        loader = MediaLoader(MediaSettings(), decoder=decoder)
        big = image(picture(size=(1500, 1500)))
        (whole,) = await loader.load([big])
        for cut_s in (0.0, 0.005, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15):
            task = asyncio.create_task(loader.load([big]))
            await asyncio.wait({task}, timeout=cut_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            (again,) = await loader.load([big])
            assert numpy.array_equal(again.content.pixels, whole.content.pixels)
        await loader.close()

    asyncio.run(run())
