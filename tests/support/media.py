"""Media that tests make themselves, and a site that serves them well or badly."""

from __future__ import annotations

import asyncio
import base64
import io
import ssl
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy
import soundfile
from PIL import Image

from dovetail.multimodal.content import MediaItem


def b64(data: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(data).decode()


def data_url(data: bytes, content_type: str = "") -> str:
    """Return a data: URL."""
    return f"data:{content_type};base64,{b64(data)}"


def image_item(url: str) -> MediaItem:
    """Return an image at a URL, as the first part of the first message."""
    return MediaItem(kind="image", url=url, where="messages[0].content[0]")


def picture(form: str = "PNG", size: tuple[int, int] = (32, 24), mode: str = "RGB") -> bytes:
    """Return a picture: red on the left, blue on the right."""
    image = Image.new(mode, size, "red")
    image.paste(Image.new(mode, (size[0] - size[0] // 2, size[1]), "blue"), (size[0] // 2, 0))
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def png_of(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG whose header claims a size, with other chunks before a row of zeros."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(bytes(64))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def sine(num: int, rate_hz: int, tone_hz: float = 440.0) -> numpy.ndarray[Any, Any]:
    """Return samples of a tone."""
    return (0.5 * numpy.sin(numpy.arange(num) * (2 * numpy.pi * tone_hz / rate_hz))).astype("f4")


def tone(form: str = "WAV", num: int = 8000, rate_hz: int = 8000) -> bytes:
    """Return a tone as a file of libsndfile's."""
    file = io.BytesIO()
    soundfile.write(file, sine(num, rate_hz), rate_hz, format=form)
    return file.getvalue()


def tone_by_ffmpeg(form: str, codec: str, rate_hz: int = 44100) -> bytes:
    """Return a tone of a second as a file of FFmpeg's."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream: Any = out.add_stream(codec, rate=rate_hz)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(
            sine(rate_hz, rate_hz)[None], format="fltp", layout="mono"
        )
        frame.sample_rate = rate_hz
        for packet in (*stream.encode(frame), *stream.encode()):
            out.mux(packet)
    return file.getvalue()


def clip(
    num_frames: int = 50,
    form: str = "mp4",
    codec: str = "libx264",
    size: tuple[int, int] = (64, 48),
) -> bytes:
    """Return a video at 10 frames a second: frame i is gray of brightness 5 i."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=form) as out:
        stream: Any = out.add_stream(codec, rate=10)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = 12
        for i in range(num_frames):
            pixels = numpy.full((size[1], size[0], 3), 5 * i % 256, "u1")
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return file.getvalue()


Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def reply(body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a length, unless the headers say another."""

    async def answer(path: str, writer: asyncio.StreamWriter) -> None:
        given = {"Content-Length": str(len(body)), **(headers or {})}
        lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in given.items() if v), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    return answer


class Site:
    """A server on this machine whose paths give answers; `seen` are the heads of its requests."""

    def __init__(self, answers: Mapping[str, Answer], tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[str] = []
        self._answers = answers
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, path: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        """Return a URL of the site."""
        return f"{scheme}://{host}:{self.port}{path}"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.seen.append(head)
            path = head.split(" ")[1]
            await self._answers[path.partition("?")[0]](path, writer)
        except (OSError, asyncio.IncompleteReadError):
            return  # the client has gone
        finally:
            writer.close()
