"""RunaiStreamer: safetensors files read by many threads of the runai-model-streamer package.

Two names: whole checkpoints, and the files per rank of sharded_state. Headers are checked here
before the package sees a file. Knows no object store: only local folders are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import check_nonempty, weight_files
from dovetail_plugins.load_formats.safetensors import INDEX, PATTERNS, Safetensors
from dovetail_plugins.load_formats.sharded_state import ShardedOptions, ShardedState, rank_files

if TYPE_CHECKING:
    import torch

SOURCE = "https://github.com/run-ai/runai-model-streamer"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How the package reads."""

    concurrency: int | None = field(
        default=None, metadata={"help": "threads that read (16 unless --max-parallel-loading-...)"}
    )
    memory_limit: int | None = field(
        default=None,
        metadata={"help": "bytes of the buffer that is read into; the largest file's if left out"},
    )

    def __post_init__(self) -> None:
        _check_positive("concurrency", self.concurrency)
        _check_positive("memory_limit", self.memory_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStreamOptions(ShardedOptions):
    """How the package reads, and the names of the files."""

    concurrency: int | None = field(default=None, metadata={"help": "threads that read"})
    memory_limit: int | None = field(
        default=None,
        metadata={"help": "bytes of the buffer that is read into; the largest file's if left out"},
    )

    def __post_init__(self) -> None:
        ShardedOptions.__post_init__(self)
        _check_positive("concurrency", self.concurrency)
        _check_positive("memory_limit", self.memory_limit)


class RunaiStreamer(LoadFormat):
    """All tensors of the folder's safetensors files, through the package."""

    info = Info(
        summary="safetensors files read by many threads",
        source=SOURCE,
        requires=("runai_model_streamer",),
        extra="load-formats",
    )
    Options = StreamOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        return Safetensors.why_not(query)

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, in the order in which they are read."""
        from dovetail_plugins.load_formats._runai import stream

        files = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
        check_nonempty(checkpoint, files, "*.safetensors file")
        return stream(files, checkpoint, self.options.concurrency, self.options.memory_limit)

    def headers(self, checkpoint: Checkpoint) -> Iterator[TensorHeader]:
        """Return all headers, as the format safetensors does."""
        return Safetensors(Safetensors.Options()).headers(checkpoint)


class RunaiStreamerSharded(ShardedState):
    """The parameters of one rank (see sharded_state), through the package."""

    info = Info(
        summary="sharded_state files read by many threads",
        source=SOURCE,
        requires=("runai_model_streamer",),
        extra="load-formats",
    )
    capabilities = frozenset({"divided", "writes"})
    Options = ShardedStreamOptions

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield this rank's parameters. Raises: ConfigError when the ranks are not as many."""
        from dovetail_plugins.load_formats._runai import stream

        files = rank_files(checkpoint, self.options.pattern)
        return stream(files, checkpoint, self.options.concurrency, self.options.memory_limit)


def _check_positive(name: str, value: Any) -> None:
    """Raises: ConfigError for a count below one."""
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(
            f"{value!r} is not a positive integer.",
            where=f"load_format.{name}",
            fix="give 1 or more, or leave it out.",
        )
