"""Npcache: torch.save weights cached as numpy files, so that later starts map them instead.

The cache is a folder "np" (one .npy per tensor and manifest.json) in the checkpoint or in
--download-dir. It is rebuilt when the source files change.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import ByteCount, check_nonempty
from dovetail_plugins.load_formats.pt import Pt, PtOptions, pt_files

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
_FILE = re.compile(r"\d{5,9}\.npy")
"""The names of tensors' files: they cannot point outside the cache."""


class Npcache(LoadFormat):
    """The tensors of torch.save files, by way of numpy files written on the first load."""

    info = Info(summary="torch.save files, cached as mappable numpy files", requires=("numpy",))
    capabilities = frozenset({"writes_cache", "lazy"})
    Options = PtOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        return Pt.why_not(query)

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, from the cache, which is first rewritten if it is stale."""
        from dovetail_plugins.load_formats._npy import map_tensor

        files = pt_files(checkpoint)
        check_nonempty(checkpoint, files, "*.bin, *.pt or *.pth file")
        folder = cache_folder(checkpoint)
        stamp = _stamp(files)
        if not _is_fresh(folder, stamp):
            _write(checkpoint, folder, stamp, Pt(self.options))
        entries = _entries(folder)
        count = ByteCount(checkpoint.progress, sum(e["bytes"] for e in entries.values()))
        for name, entry in entries.items():
            yield name, map_tensor(folder / entry["file"], entry["dtype"])
            count.add(entry["bytes"])


def cache_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder of this checkpoint's cache."""
    if checkpoint.download_dir is None:
        return Path(checkpoint.path) / "np"
    return Path(checkpoint.download_dir) / f"np-{Path(checkpoint.path).resolve().name}"


def _entries(folder: Path) -> dict[str, Any]:
    """Return name -> entry of the manifest. Raises: ConfigError when one is not an entry of
    ours."""
    path = folder / MANIFEST
    tensors = read_json(path).get("tensors")
    entries = tensors if isinstance(tensors, dict) else {"tensors": None}
    for name, entry in entries.items():
        fields = entry if isinstance(entry, dict) else {}
        file, kinds = fields.get("file"), (type(fields.get("dtype")), type(fields.get("bytes")))
        is_here = isinstance(file, str) and _FILE.fullmatch(file) is not None
        if not is_here or kinds != (str, int):
            raise ConfigError(
                f'the numpy cache is damaged: "{name}" has no valid entry.',
                where=str(path),
                fix="delete the cache's folder; it is written again.",
            )
    return entries


def _stamp(files: list[Path]) -> dict[str, list[int]]:
    """Return a stamp of the source files: size and time of each."""
    return {p.name: [p.stat().st_size, p.stat().st_mtime_ns] for p in files}


def _is_fresh(folder: Path, stamp: dict[str, list[int]]) -> bool:
    manifest = folder / MANIFEST
    return manifest.is_file() and read_json(manifest).get("sources") == stamp


def _write(checkpoint: Checkpoint, folder: Path, stamp: dict[str, list[int]], reader: Pt) -> None:
    """Write the cache to a temporary folder and move it into place, so no partial one is read."""
    from dovetail_plugins.load_formats._npy import save_tensor

    source = Checkpoint(path=checkpoint.path, ignore_patterns=checkpoint.ignore_patterns)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
            fresh = Path(name, folder.name)
            fresh.mkdir()
            entries = {}
            for number, (tensor_name, tensor) in enumerate(reader.tensors(source)):
                entries[tensor_name] = save_tensor(fresh, f"{number:05d}.npy", tensor)
            text = json.dumps({"sources": stamp, "tensors": entries})
            (fresh / MANIFEST).write_text(text, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            fresh.replace(folder)
    except OSError as error:
        raise ConfigError(
            f"the numpy cache cannot be written: {error}",
            where=str(folder),
            fix="give a writable folder with --download-dir, or use --load-format pt.",
        ) from error
