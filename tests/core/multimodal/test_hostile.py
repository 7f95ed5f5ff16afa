"""Media that are made to do harm: each ends its request with an error, soon, and nothing stays."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import psutil
import pytest
from PIL import Image

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import MIB, MediaSettings
from dovetail.multimodal.content import MediaItem
from dovetail.multimodal.decode import MediaDecoder
from dovetail.multimodal.fetch import MediaFetcher
from dovetail.multimodal.loader import MediaLoader
from support.hostile_media import ANSWERS, CASES, JPEG, MOST_BYTES, WHERE, Stage, fill, image
from support.media import Site, picture

LIMIT_S = 2.0


_calls: dict[str, int] = {}


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return addresses of made-up hosts, others' by the system."""
    _calls[host] = _calls.get(host, 0) + 1
    if host == "rebind.test":
        return ["127.0.0.1"] if _calls[host] == 1 else ["169.254.169.254"]
    known = {
        "inner.test": ["192.168.7.7"],
        "mixed.test": ["8.8.8.8", "127.0.0.1"],
        "mapped.test": ["::ffff:10.0.0.1"],
    }
    if host in known:
        return known[host]
    infos = await asyncio.get_running_loop().getaddrinfo(host, port)
    return [str(info[4][0]) for info in infos]


class Rig:
    """A loader, a site and a folder, in one event loop for all cases."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.folder = folder
        self.runner.run(self._open())

    async def _open(self) -> None:
        self.site = await Site(ANSWERS).__aenter__()
        bounds: dict[str, Any] = {
            "local_path": str(self.folder.resolve()),
            "fetch_timeouts_s": {"image": 0.5, "audio": 0.5, "video": 0.5},
            "max_bytes": {"image": MOST_BYTES, "audio": 64 * MIB, "video": 64 * MIB},
        }
        self.decoder = MediaDecoder()
        self.anywhere = self._loader(MediaSettings(**bounds))
        named = MediaSettings(domains=("127.0.0.1", "rebind.test"), **bounds)
        self.named = self._loader(named)
        await self.anywhere.load([MediaItem(kind="image", url=image(JPEG), where=WHERE)])

    def _loader(self, settings: MediaSettings) -> MediaLoader:
        fetcher = MediaFetcher(settings=settings, resolve=resolve)
        return MediaLoader(settings, fetcher=fetcher, decoder=self.decoder)

    def load(self, item: MediaItem) -> Any:
        """Return the medium; the site's own pages are of named hosts."""
        is_page = item.url is not None and f":{self.site.port}/" in item.url
        loader = self.named if is_page else self.anywhere
        return self.runner.run(loader.load([item]))[0].content

    def close(self) -> None:
        self.runner.run(self.decoder.close())
        self.runner.run(self.site.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("media") / "allowed"
    folder.mkdir()
    fill(folder)
    made = Rig(folder)
    yield made
    made.close()


def memory_bytes(rig: Rig) -> int:
    processes = [psutil.Process(), *(psutil.Process(pid) for pid in rig.decoder.pids)]
    return sum(process.memory_info().rss for process in processes)


@pytest.mark.parametrize(("name", "make", "words"), CASES, ids=[case[0] for case in CASES])
def test_it_ends_its_request_soon(
    rig: Rig, name: str, make: Callable[[Stage], MediaItem | str], words: str
) -> None:
    made = make(Stage(site=rig.site, folder=rig.folder.resolve()))
    item = made if isinstance(made, MediaItem) else MediaItem(kind="image", url=made, where=WHERE)
    before = memory_bytes(rig)
    began_s = time.monotonic()
    with pytest.raises(RequestError, match=words) as caught:
        rig.load(item)
    assert time.monotonic() - began_s < LIMIT_S
    assert 400 <= caught.value.status < 500
    assert caught.value.where == WHERE
    assert memory_bytes(rig) - before < 64 * MIB
    assert not Path("/tmp/dovetail-bomb").exists()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 64
    assert len({name for name, _, _ in CASES}) == len(CASES)


def test_after_all_that_a_picture_is_read(rig: Rig) -> None:
    (rig.folder / "good.png").write_bytes(picture())
    item = MediaItem(kind="image", url=f"file://{rig.folder.resolve()}/good.png", where=WHERE)
    pixels = rig.load(item).pixels
    assert numpy.array_equal(pixels, numpy.asarray(Image.open(io.BytesIO(picture()))))


def test_a_mount_within_the_folder_is_not_entered() -> None:
    settings = MediaSettings(local_path="/")
    item = MediaItem(kind="image", url="file:///proc/self/environ", where=WHERE)

    async def run() -> None:
        loader = MediaLoader(settings)
        with pytest.raises(RequestError, match="another file system"):
            await loader.load([item])
        await loader.close()

    asyncio.run(run())
