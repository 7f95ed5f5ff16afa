"""Media that are made to do harm, as items of requests, and the site and folder they point to.

Needs Pillow, torch, soundfile and PyAV.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from dovetail.interfaces.data.media_settings import MIB
from dovetail.multimodal.content import MediaItem
from support.media import (
    Answer,
    Site,
    b64,
    clip,
    data_url,
    picture,
    png_of,
    reply,
    tone,
    tone_by_ffmpeg,
)

MOST_BYTES = 4 * MIB
WHERE = "messages[0].content[0]"


def endless(pause_s: float, part: bytes) -> Answer:
    """Return an answer without an end."""

    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def silence(path: str, writer: asyncio.StreamWriter) -> None:
    """Accept a connection and say nothing."""
    await asyncio.sleep(60)


def raw(data: bytes) -> Answer:
    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


def to(url: str) -> Answer:
    return reply(status=302, headers={"Location": url})


GZIP = zlib.compress(bytes(32 * MIB), wbits=31)
ANSWERS: dict[str, Answer] = {
    "/loop": to("/loop"),
    "/to-metadata": to("http://169.254.169.254/latest/meta-data/"),
    "/to-inside": to("http://10.0.0.1/"),
    "/to-file": to("file:///etc/passwd"),
    "/to-ftp": to("ftp://127.0.0.1/a.png"),
    "/to-other": to("http://elsewhere.test/a.png"),
    "/to-user": to("http://a:b@127.0.0.1/"),
    "/rebind": to("http://rebind.test/a.png"),
    "/silent": silence,
    "/drip": endless(0.05, b"x"),
    "/flood": endless(0.0, bytes(1 << 16)),
    "/big": reply(b"x", headers={"Content-Length": str(10**12)}),
    "/short": reply(b"\x89PNG", headers={"Content-Length": "4000"}),
    "/negative": reply(b"x", headers={"Content-Length": "-5"}),
    "/gzip": reply(GZIP, headers={"Content-Encoding": "gzip"}),
    "/header": raw(b"HTTP/1.1 200 OK\r\nA: " + b"a" * (2 * MIB)),
    "/no-http": raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "/html": reply(b"<html>", headers={"Content-Type": "text/html"}),
    "/svg": reply(b"<svg/>", headers={"Content-Type": "image/svg+xml"}),
    "/missing": reply(status=404),
    "/nothing": reply(b""),
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a case may need: a site, and a folder whose files may be read."""

    site: Site
    folder: Path


Case = tuple[str, Callable[[Stage], MediaItem | str], str]
"""Name, what makes the item (or the URL of an image), and words of the error."""


def image(data: bytes) -> str:
    return data_url(data)


def sound(data: bytes) -> MediaItem:
    return MediaItem(kind="audio", data=b64(data), format="wav", where=WHERE)


def video(data: bytes) -> MediaItem:
    return MediaItem(kind="video", url=data_url(data), where=WHERE)


def embeds(data: bytes) -> MediaItem:
    return MediaItem(kind="image_embeds", data=b64(data), where=WHERE)


def url(text: str) -> Callable[[Stage], str]:
    return lambda stage: text


def page(path: str, host: str = "127.0.0.1") -> Callable[[Stage], str]:
    return lambda stage: stage.site.url(path, host)


def local(path: str) -> Callable[[Stage], str]:
    return lambda stage: f"file://{stage.folder}/{path}"


SPELLINGS = (
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "017700000001", "0177.0.0.1"),
    *("[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]", "0.0.0.0", "0", "localhost"),
    *("localhost.", "10.0.0.1", "172.16.3.4", "192.168.0.1", "100.100.100.200", "169.254.169.254"),
    *("2852039166", "[fe80::1]", "[fd00:ec2::254]", "224.0.0.1", "255.255.255.255"),
    *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127。0。0。1", "[fe80::1%25lo]", "inner.test"),
    *("mixed.test", "mapped.test"),
)
NO_ADDRESS = "address|names no host|spelling|invalid|cannot be fetched"
SCHEMES = (
    *(
        "ftp://a.test/a.png",
        "gopher://127.0.0.1:70/",
        "javascript:alert(1)",
        "HTTP:/a",
        "//a.test/",
    ),
    *("http://", "http:///a", "http://user@8.8.8.8/", "http://8.8.8.8@127.0.0.1/"),
    *("http://8.8.8.8:22/", "http://8.8.8.8:99999/", "http://a.test\\@127.0.0.1/"),
    *("http://127.0.0.1#@8.8.8.8/", "http://a b/", "http://exa%2emple.test/"),
)


def wav_of(rate_hz: int, channels: int = 1, num: int = 64) -> bytes:
    """Return a WAV file whose header says what it likes."""
    body = bytes(2 * num)
    head = struct.pack(
        "<HHIIHH", 1, channels, rate_hz, (2 * channels * rate_hz) % 2**32, 2 * channels, 16
    )
    parts = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(body))
    return b"RIFF" + struct.pack("<I", len(parts) + len(body)) + parts + body


def float_wav(value: float) -> bytes:
    import soundfile

    file = io.BytesIO()
    samples = numpy.full(64, value, "f4")
    soundfile.write(file, samples, 8000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def patched(data: bytes, box: bytes, at: int, value: int) -> bytes:
    """Return an MP4 file with a number changed, `at` bytes behind the name of a box."""
    place = data.index(box) + 4 + at
    return data[:place] + struct.pack(">I", value) + data[place + 4 :]


def billion_frames() -> bytes:
    data = patched(clip(5), b"stsz", 4, 1)
    return patched(patched(data, b"stsz", 8, 10**9), b"stts", 8, 10**9)


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


class Bomb:
    """Runs a command when it is unpickled by who runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("touch /tmp/dovetail-bomb",))


def deflated() -> bytes:
    """Return an archive of torch's whose parts are compressed: little that becomes much."""
    plain = zipfile.ZipFile(io.BytesIO(saved(torch.zeros(1 << 20))))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
    return file.getvalue()


def safetensors(head: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def claims(shape: list[int]) -> bytes:
    return safetensors({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}}, bytes(8))


JPEG = picture("JPEG", (640, 480))
NAN = float("nan")
CASES: list[Case] = [
    *((f"host {host}", url(f"http://{host}/a.png"), NO_ADDRESS) for host in SPELLINGS),
    *((f"url {text}", url(text), "URL|host|address|port|cannot be fetched") for text in SCHEMES),
    ("redirects for ever", page("/loop"), "redirects more than"),
    ("a redirect to metadata", page("/to-metadata"), "may not be fetched"),
    ("a redirect inside", page("/to-inside"), "may not be fetched"),
    ("a redirect to a file", page("/to-file"), 'by "file:"'),
    ("a redirect to ftp", page("/to-ftp"), 'by "ftp:"'),
    ("a redirect to another host", page("/to-other"), "may not be fetched"),
    ("a redirect with a user", page("/to-user"), "a user or a password"),
    ("a name that moves", page("/rebind", "rebind.test"), "169.254.169.254"),
    ("a server that is silent", page("/silent"), "longer than 0.5 s"),
    ("a server that drips", page("/drip"), "longer than 0.5 s"),
    ("a body without end", page("/flood"), "too large"),
    ("a length of a terabyte", page("/big"), "too large"),
    ("a body that stops", page("/short"), "does not speak HTTP|damaged|fetched"),
    ("a negative length", page("/negative"), "does not speak HTTP"),
    ("a compressed body", page("/gzip"), "compressed"),
    ("a header without end", page("/header"), "does not speak HTTP"),
    ("another protocol", page("/no-http"), "does not speak HTTP"),
    ("a page", page("/html"), 'its type is "text/html"'),
    ("a drawing by URL", page("/svg"), "SVG"),
    ("a page that is missing", page("/missing"), "status 404"),
    ("an empty body", page("/nothing"), "no data"),
    ("a file above", local("../secret.txt"), "not in the folder"),
    ("a file above, in percents", local("%2e%2e/secret.txt"), "not in the folder"),
    ("a file elsewhere", url("file:///etc/passwd"), "not in the folder"),
    ("a link", local("link.png"), "links are not followed"),
    ("a linked folder", local("linked/secret.txt"), "links are not followed"),
    ("a pipe", local("pipe"), "a folder, a pipe"),
    ("a socket's folder", local("inner"), "a folder, a pipe"),
    ("the folder", local(""), "not in the folder"),
    ("an empty file", local("empty.png"), "empty"),
    ("a large file", local("large.png"), "too large"),
    ("a file of another host", url("file://other.test/a.png"), "alone"),
    ("a null in a name", local("a%00.png"), "alone"),
    ("a file that is missing", local("missing.png"), "no such file"),
    ("text for a file", local("text.png"), "not an image"),
    ("data without a comma", url("data:image/png;base64"), "no comma"),
    ("no base64", url("data:image/png;base64,!!!!"), "not in base64"),
    ("base64 of other letters", url("data:image/png;base64,éé"), "not in base64"),
    ("no data", url("data:image/png;base64,"), "no data"),
    ("a text as data", url("data:text/html,<b>x</b>"), "cannot have"),
    ("too much data", url("data:;base64," + "A" * (2 * MOST_BYTES)), "too large"),
    ("a drawing", lambda _: image(b"<svg onload='alert(1)'><script/></svg>"), "SVG"),
    ("a drawing with entities", lambda _: image(b"<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY a "
                                                b"'b'>]><svg/>"), "SVG"),
    ("a picture of 100 megapixels", lambda _: image(png_of(10_000, 10_000)), "10000 x 10000"),
    ("a picture of 900 megapixels", lambda _: image(png_of(30_000, 30_000)), "pixels"),
    ("a picture of 2^62 pixels", lambda _: image(png_of(2**31 - 1, 2**31 - 1)), "many pixels"),
    ("a picture of none", lambda _: image(png_of(0, 5)), "no pixels|not an image|damaged"),
    ("a text that explodes", lambda _: image(png_of(
        8, 8, (b"zTXt", b"a\0\0" + zlib.compress(bytes(64 * MIB))))), "damaged"),
    ("a colour profile that explodes", lambda _: image(png_of(
        8, 8, (b"iCCP", b"a\0\0" + zlib.compress(bytes(64 * MIB))))), "damaged"),
    ("a picture cut short", lambda _: image(picture(size=(300, 200))[:200]), "damaged"),
    ("a photo cut short", lambda _: image(JPEG[:1000]), "damaged"),
    ("PostScript", lambda _: image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
     "not an image"),
    ("noise as a picture", lambda _: image(bytes(range(256)) * 9), "not an image"),
    ("sound as a picture", lambda _: image(tone()), "not an image"),
    ("a picture as sound", lambda _: sound(picture()), "not a sound"),
    ("an empty sound", lambda _: sound(wav_of(8000, num=0)), "empty|damaged"),
    ("a header alone", lambda _: sound(tone()[:20]), "damaged|not a sound|empty"),
    ("a rate of billions", lambda _: sound(wav_of(2**32 - 1)), "samples a second|damaged"),
    ("a rate of none", lambda _: sound(wav_of(0)), "samples a second|damaged"),
    ("thousands of channels", lambda _: sound(wav_of(8000, channels=5000, num=10000)),
     "channels|damaged"),
    ("samples that are no numbers", lambda _: sound(float_wav(NAN)), "NaN"),
    ("two hours of silence", lambda _: sound(tone("FLAC", 7_200_000, 1000)), "too long"),
    ("a video as sound", lambda _: sound(clip(5)), "has no sound"),
    ("a sound cut short", lambda _: sound(tone_by_ffmpeg("mp4", "aac")[:900]),
     "damaged|not a sound"),
    ("a billion frames", lambda _: video(billion_frames()), "frames|damaged|memory"),
    ("a video cut short", lambda _: video(clip()[:1500]), "damaged|no frames"),
    ("a video of sound", lambda _: video(tone_by_ffmpeg("mp4", "aac")), "no frames"),
    ("a picture as a video", lambda _: video(picture()), "not a video"),
    ("a playlist", lambda _: video(b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n"
                                   b"http://127.0.0.1/\n"), "not a video"),
    ("a list of files", lambda _: video(b"ffconcat version 1.0\nfile /etc/passwd\n"),
     "not a video"),
    ("noise behind a video's start", lambda _: video(b"\0\0\0\x18ftypisom" + os.urandom(4000)),
     "damaged|no frames"),
    ("noise behind Matroska's start", lambda _: video(b"\x1a\x45\xdf\xa3" + os.urandom(4000)),
     "damaged|no frames"),
    ("embeddings with NaN", lambda _: embeds(saved(torch.tensor([[1.0, NAN]]))), "NaN"),
    ("embeddings with infinity", lambda _: embeds(saved(torch.tensor([[float("inf")]]))), "NaN"),
    ("code in a pickle", lambda _: embeds(saved(Bomb())), "more than a tensor"),
    ("code beside a tensor", lambda _: embeds(saved({"a": torch.ones(2), "b": Bomb()})),
     "more than a tensor"),
    ("a compressed archive", lambda _: embeds(deflated()), "does not write"),
    ("one number of any size", lambda _: embeds(saved(torch.ones(1).expand(10**6, 10**6))),
     "shape"),
    ("more values than there are", lambda _: embeds(claims([1 << 40, 1 << 20])), "cannot be read"),
    ("a header of any size", lambda _: embeds(struct.pack("<Q", 2**63) + b"{}"), "cannot be read"),
    ("several tensors", lambda _: embeds(safetensors({
        name: {"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]}
        for name, at in (("a", 0), ("b", 4))}, bytes(8))), "one tensor"),
    ("no values", lambda _: embeds(saved(torch.empty(0, 8))), "shape"),
    ("complex values", lambda _: embeds(saved(torch.ones(2, dtype=torch.cfloat))), "more than"),
    ("whole numbers", lambda _: embeds(saved(torch.ones(2, dtype=torch.int64))), "must be float"),
    ("sparse values", lambda _: embeds(saved(torch.ones(2, 2).to_sparse())), "more than|dense"),
    ("a plain pickle", lambda _: embeds(b"\x80\x04cos\nsystem\n(S'true'\ntR."), "cannot be read"),
    ("noise as embeddings", lambda _: embeds(os.urandom(100)), "cannot be read"),
    ("embeddings that are no base64",
     lambda _: MediaItem(kind="image_embeds", data="?", where=WHERE), "not in base64"),
    ("embeddings of one number", lambda _: embeds(saved(torch.tensor(1.0))), "shape"),
]  # fmt: skip


def fill(folder: Path) -> None:
    """Write a folder whose files may be read, and what leads out of it."""
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "link.png").symlink_to(folder.parent / "secret.txt")
    (folder / "linked").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    (folder / "inner").mkdir()
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("text")
    with (folder / "large.png").open("wb") as file:
        file.truncate(2 * MOST_BYTES)
