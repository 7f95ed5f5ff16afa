"""MediaLoader: fetches and decodes the media of a request.

Counts are checked before anything is fetched; then all media of a request are loaded concurrently.
The first failure cancels the others.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from dovetail.config.rules.multimodal.settings import media_options
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.media_settings import (
    AUDIO_EMBEDS,
    IMAGE_EMBEDS,
    MediaLimit,
    MediaOptions,
    MediaSettings,
)
from dovetail.multimodal.base64_text import plain_base64
from dovetail.multimodal.content import (
    EMBEDS,
    Decoded,
    Embeddings,
    LoadedMedium,
    MediaItem,
    Named,
    check_counts,
    invalid,
)
from dovetail.multimodal.decode import MediaDecoder
from dovetail.multimodal.local import read_local
from dovetail.multimodal.refusals import check_content_type, too_large

if TYPE_CHECKING:
    from dovetail.multimodal.fetch import MediaFetcher

MAX_IN_FLIGHT = 8
"""Maximum number of media being loaded, over all requests; limits their memory."""


class MediaLoader:
    """One per API process, used within one event loop. Close it.

    Raises: ConfigError if a package is missing
    """

    def __init__(
        self,
        settings: MediaSettings,
        *,
        fetcher: MediaFetcher | None = None,
        decoder: MediaDecoder | None = None,
    ) -> None:
        self._settings = settings
        self._decoder = decoder or MediaDecoder()
        self._fetcher = fetcher
        self._turns = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def load(
        self, items: Sequence[MediaItem], options: Mapping[str, Any] | None = None
    ) -> list[LoadedMedium]:
        """Return the media of a request, in order. `options` are its media_io_kwargs.

        Raises: RequestError
        """
        check_counts(items, self._settings.limits)
        chosen = request_options(options, self._settings.options)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(item, chosen)) for item in items]
        except BaseExceptionGroup as errors:
            refused, others = errors.split(RequestError)
            if refused is None or others is not None:
                raise
            raise _first(refused) from None
        return [task.result() for task in tasks]

    async def close(self) -> None:
        """End the decoding processes."""
        await self._decoder.close()

    async def sent(self, item: MediaItem, data: bytes) -> Decoded:
        """Return the decoded medium from bytes sent in the request. Raises: RequestError"""
        max_bytes = self._settings.max_bytes[item.modality]
        if len(data) > max_bytes:
            raise too_large(item, max_bytes)
        limit = self._settings.limits.get(item.modality, MediaLimit())
        async with self._turns:
            return await self._decoder.decode(item, data, self._settings.options, limit)

    async def _one(self, item: MediaItem, options: MediaOptions) -> LoadedMedium:
        if item.url is None and item.data is None and item.uuid is not None:
            return LoadedMedium(item=item, content=Named(), digest="")
        async with self._turns:
            if item.kind in (IMAGE_EMBEDS, AUDIO_EMBEDS):
                return await asyncio.to_thread(self._embeddings, item)
            data, is_base64 = await self._bytes(item)
            limit = self._settings.limits.get(item.modality, MediaLimit())
            content = await self._decoder.decode(item, data, options, limit, is_base64=is_base64)
            digest = await asyncio.to_thread(_digest, item.kind, options, data, is_base64)
            return LoadedMedium(item=item, content=content, digest=digest)

    async def _bytes(self, item: MediaItem) -> tuple[bytes, bool]:
        """Return the bytes of a medium, and whether they are still in base64."""
        if isinstance(item.data, str):
            return self._inline(item, item.data), True
        assert item.url is not None, "an item has data, a URL, or a uuid alone"
        scheme = item.url[:8].partition(":")[0].lower()
        if scheme == "data":
            return self._data_url(item, item.url)
        if scheme == "file":
            return await asyncio.to_thread(read_local, item, self._settings), False
        if self._fetcher is None:  # created on first use: the import takes time
            self._fetcher = await asyncio.to_thread(_fetcher, self._settings)
        return await self._fetcher.fetch(item), False

    def _data_url(self, item: MediaItem, url: str) -> tuple[bytes, bool]:
        """Return the bytes of a data: URL. Source: RFC 2397"""
        comma = url[:1024].find(",")
        if comma < 0:
            raise invalid(item, "the data: URL has no comma.")
        words = url[len("data:") : comma].split(";")
        check_content_type(item, words[0])
        body = url[comma + 1 :]
        if words[-1].strip().lower() == "base64":
            return self._inline(item, unquote(body) if "%" in body else body), True
        if len(body) > self._settings.max_bytes[item.modality] * 3 + 4:
            raise too_large(item, self._settings.max_bytes[item.modality])
        return unquote_to_bytes(body), False

    def _inline(self, item: MediaItem, text: str) -> bytes:
        """Return base64 in the form that decoders accept. Raises: RequestError if it is too long"""
        max_bytes = self._settings.max_bytes[item.modality]
        try:
            found = plain_base64(text)
        except UnicodeEncodeError:
            raise invalid(item, "the data are not in base64.") from None
        if len(found) > max_bytes * 4 // 3 + 4:
            raise too_large(item, max_bytes)
        return found

    def _embeddings(self, item: MediaItem) -> LoadedMedium:
        from dovetail.multimodal.embeds import decode_embeddings  # imports torch

        assert item.data is not None, "embeddings have data or a uuid alone"
        given = {EMBEDS: item.data} if isinstance(item.data, str) else item.data
        try:
            tensors = decode_embeddings(given, self._settings.max_bytes[item.modality])
        except RequestError as error:
            error.where = item.where
            raise
        encoded = msgspec.json.encode(sorted(given.items()))
        digest = _digest(item.kind, self._settings.options, encoded, False)
        return LoadedMedium(item=item, content=Embeddings(tensors=tensors), digest=digest)


async def load_once(settings: MediaSettings, items: Sequence[MediaItem]) -> list[LoadedMedium]:
    """Return media with a temporary loader. Raises: RequestError, ConfigError"""
    loader = MediaLoader(settings)
    try:
        return await loader.load(items)
    finally:
        await loader.close()


def request_options(given: Mapping[str, Any] | None, base: MediaOptions) -> MediaOptions:
    """Return the decoding options of a request's media; it may lower limits, not raise them.

    Raises: RequestError
    """
    if not given:
        return base
    try:
        options = media_options(given, where="media_io_kwargs", base=base)
    except ConfigError as error:
        raise RequestError(error.what, where=error.where, fix=error.fix) from None
    for modality, name in (("image", "max_pixels"), ("video", "max_pixels"),
                           ("audio", "max_seconds")):  # fmt: skip
        maximum = getattr(getattr(base, modality), name)
        if getattr(getattr(options, modality), name) > maximum:
            raise RequestError(
                f"may be {maximum:g} at most.", where=f"media_io_kwargs.{modality}.{name}"
            )
    return options


def _digest(kind: str, options: MediaOptions, data: bytes, is_base64: bool) -> str:
    """Return the hash of everything that a decoded content depends on."""
    digest = hashlib.sha256(msgspec.json.encode([kind, options]))
    digest.update(base64.b64decode(data) if is_base64 else data)
    return digest.hexdigest()


def _fetcher(settings: MediaSettings) -> MediaFetcher:
    from dovetail.multimodal.fetch import MediaFetcher  # imports httpx, and trio if installed

    return MediaFetcher(settings=settings)


def _first(errors: BaseExceptionGroup[RequestError]) -> RequestError:
    """Return the first error of a group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RequestError)
    return error
