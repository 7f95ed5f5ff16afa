"""The process that fetches a model of the hub, or of Ollama's registry, and writes its progress as
lines of JSON into a pipe.

The lines are Ollama's: {"status": ...}, with "digest", "total" and "completed" for files, and at
last {"status": "success"} or {"error": ...}. Only this process imports the hub's client.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dovetail.config.checkpoint.sources.gguf_names import grouped, named, projectors
from dovetail.config.checkpoint.sources.hub import (
    Hub,
    Wanted,
    check_allowed,
    client_errors,
    fetch,
    fetch_quant,
    needed_files,
)
from dovetail.config.checkpoint.sources.hub_cache import cache_folder, repo_folder
from dovetail.errors import DovetailError
from dovetail.processes.process import read_boot
from dovetail_plugins.gateway.manage.lines import Lines
from dovetail_plugins.ollama_registry.blob import Blob
from dovetail_plugins.ollama_registry.fetching import fetch_model
from dovetail_plugins.ollama_registry.names import RegistryName, registry_name

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PERIOD_S = 0.1
"""How often the progress of one file is written at most."""
READ_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
"""What of a file is written at a time: less of it is lost when a connection breaks."""


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What to fetch, from where, and the number of the pipe."""

    name: str
    quant: str
    cache: str | None
    token: str | None
    is_modelscope: bool
    pipe: int


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A file on the hub. `sha256` is known of large files, `blob_id` (git's hash) of all."""

    name: str
    size: int
    sha256: str | None
    blob_id: str

    @property
    def digest(self) -> str:
        """Return its name in the lines."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git:{self.blob_id}"


def main() -> int:
    """Fetch as the boot message says; return the exit status."""
    boot = read_boot(Boot)
    out = PullLines(boot.pipe)
    hub = Hub(cache=boot.cache, token=boot.token, is_modelscope=boot.is_modelscope)
    wanted = Wanted("model", boot.name, None)
    name = registry_name(boot.name)
    try:
        check_allowed(wanted)
        out.write(status="pulling manifest")
        if name is None:
            with _full_disk_named("--download-dir names another place."):
                _pull(wanted, boot.quant, hub, out)
        else:
            with _full_disk_named("OLLAMA_MODELS names another place."):
                _pull_of_registry(name, out)
    except (DovetailError, OSError) as error:
        text = error.advice if isinstance(error, DovetailError) else str(error)
        out.write(error=hub.masked(text))
        return 1
    out.write(status="success")
    return 0


class PullLines(Lines):
    """Lines of a download."""

    def progress(self, file: Remote, completed: int) -> None:
        """Write how much of a file has arrived."""
        self.write(
            status=f"pulling {file.digest.rpartition(':')[2][:12]}",
            digest=file.digest,
            total=file.size,
            completed=min(completed, file.size),
        )


def _pull(wanted: Wanted, quant: str, hub: Hub, out: PullLines) -> None:
    """Fetch a model of the hub. Raises: ConfigError, OSError"""
    if not hub.is_modelscope:
        with client_errors(wanted, hub):
            commit, files = _remote_files(wanted, hub)
        fetched = [
            (file, path)
            for file in _needed(files, quant)
            if (path := _fetched(wanted, hub, commit, file, out)) is not None
        ]
        out.write(status="verifying sha256 digest")
        for file, path in fetched:
            _verify(file, path)
    out.write(status="writing manifest")
    if quant:
        fetch_quant(wanted, quant, hub)
    else:
        fetch(wanted, hub)


def _pull_of_registry(name: RegistryName, out: PullLines) -> None:
    """Fetch a model of Ollama's registry. Raises: ConfigError, OSError"""

    def tell(blob: Blob, completed: int) -> None:
        digits = blob.digest.removeprefix("sha256:")
        out.progress(Remote(name="", size=blob.size, sha256=digits, blob_id=""), completed)

    fetch_model(name, tell=tell, say=lambda status: out.write(status=status))


def _remote_files(wanted: Wanted, hub: Hub) -> tuple[str, list[Remote]]:
    """Return (the commit, its files). Raises: as huggingface_hub does"""
    from huggingface_hub import HfApi

    info = HfApi(token=hub.login).model_info(wanted.name, files_metadata=True)
    found = [
        Remote(
            name=one.rfilename,
            size=one.size or 0,
            sha256=one.lfs.sha256 if one.lfs else None,
            blob_id=one.blob_id or "",
        )
        for one in info.siblings or ()
    ]
    return str(info.sha), found


def _needed(files: Sequence[Remote], quant: str) -> list[Remote]:
    """Return the files of a model; empty if the name is not clear, which `fetch` explains."""
    names = [file.name for file in files]
    if quant:
        found = named(grouped(names), quant)
        own = set(found[0].files) if len(found) == 1 else set()
        wanted = own | set(projectors(names)[:1]) if own else own
    else:
        settings = set(needed_files(names, with_weights=False))
        whole = set(needed_files(names, with_weights=True))
        wanted = whole if whole > settings or not grouped(names) else set()
    return [file for file in files if file.name in wanted]


def _fetched(wanted: Wanted, hub: Hub, commit: str, file: Remote, out: PullLines) -> Path | None:
    """Return a file's path once it is here, with its progress told; None if it was. Raises:
    ConfigError, OSError"""
    place = repo_folder(cache_folder(hub.cache), wanted.name) / "snapshots" / commit / file.name
    if place.exists():
        out.progress(file, file.size)
        return None
    from huggingface_hub import constants, hf_hub_download

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
    out.progress(file, 0)
    with client_errors(wanted, hub), _full_disk_named("--download-dir names another place."):
        path = hf_hub_download(
            wanted.name,
            file.name,
            revision=commit,
            cache_dir=hub.cache,
            token=hub.login,
            tqdm_class=_bar_of(file, out),
        )
    out.progress(file, file.size)
    return Path(path)


def _bar_of(file: Remote, out: PullLines) -> Any:
    """Return a progress bar that writes lines instead."""
    from tqdm.std import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        def __init__(self, **words: Any) -> None:
            self._written_s = 0.0
            super().__init__(**{**words, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if time.monotonic() - self._written_s >= PERIOD_S:
                self._written_s = time.monotonic()
                out.progress(file, int(self.n))
            return None

    return Bar


def _verify(file: Remote, path: Path) -> None:
    """Raise DovetailError, and delete the file, unless it has the hub's checksum."""
    size = path.stat().st_size
    expected = file.sha256 or file.blob_id
    if not expected:
        return
    found = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % size)
    with path.open("rb") as content:
        while piece := content.read(READ_BYTES):
            found.update(piece)
    if found.hexdigest() != expected:
        path.resolve().unlink()
        path.unlink()
        raise DovetailError(
            f"{file.name}: what was fetched has the checksum {found.hexdigest()}, not {expected}; "
            "it was deleted.",
            fix="pull the model again.",
        )


class _DiskFull(DovetailError):
    """There is no room for a file."""


@contextmanager
def _full_disk_named(fix: str) -> Iterator[None]:
    """Turn a full disk into an error that says so, and `fix`. Raises: _DiskFull"""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise _DiskFull(
                f"the disk of the models is full ({error}).",
                fix=f"`dovetail rm` deletes models; {fix}",
            ) from error
        raise
