"""The runai-model-streamer package: files in, tensors out, settings through its variables.

Source: https://github.com/run-ai/runai-model-streamer (docs/src/env-vars.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail_plugins.load_formats._files import ByteCount
from dovetail_plugins.load_formats._shards import checked_headers, wanted_headers

CONCURRENCY = "RUNAI_STREAMER_CONCURRENCY"
MEMORY_LIMIT = "RUNAI_STREAMER_MEMORY_LIMIT"


def stream(
    files: Sequence[Path], checkpoint: Checkpoint, concurrency: int | None, limit_bytes: int | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of the files. Raises: ConfigError for bad files, or when reading fails."""
    headers = wanted_headers(checked_headers(files), checkpoint)
    files = [header.path for header in headers]
    count = ByteCount(checkpoint.progress, sum(h.data_bytes for h in headers))
    threads = concurrency or checkpoint.num_workers
    wanted = {
        CONCURRENCY: None if threads is None else str(threads),
        MEMORY_LIMIT: str(limit_bytes or max(path.stat().st_size for path in files)),
    }
    with _variables(wanted):
        for name, tensor in _tensors(files, checkpoint.path):
            yield name, tensor
            count.add(tensor.nbytes)


def _tensors(files: Sequence[Path], path: str) -> Iterator[tuple[str, torch.Tensor]]:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        try:
            streamer.stream_files([str(file) for file in files], device="cpu")
            tensors: Iterator[Any] = streamer.get_tensors()
            for name, tensor in tensors:
                yield str(name), tensor
        except Exception as error:
            # The package's error classes have no common base.
            raise ConfigError(
                f"cannot be streamed: {error}", where=path, fix="use --load-format safetensors."
            ) from error


@contextmanager
def _variables(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Set the package's variables inside a with block. Variables set by the user are unchanged."""
    own = {k: v for k, v in wanted.items() if v is not None and k not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
