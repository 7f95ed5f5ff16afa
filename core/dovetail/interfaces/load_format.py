"""LoadFormat: a checkpoint folder as a stream of named tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.headers import TensorHeader
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import RankSpec

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where the weights lie and how they may be read.

    `shapes` holds the wanted name -> (shape, dtype name) pairs; only formats that invent
    weights (dummy) use it. `ignore_patterns` are glob patterns of files to leave out.
    `num_workers` threads may read ahead (None: the format's own number). `rank` is the reader's.
    `is_skipped` says of a tensor's name whether the reader has no use for it; a format that can
    leaves such tensors unread, others may yield them all the same.
    """

    path: str
    device: str = "cpu"
    ignore_patterns: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[tuple[int, ...], str]] | None = None
    seed: int = 0
    download_dir: str | None = None
    progress: Progress | None = None
    num_workers: int | None = None
    rank: RankSpec = field(default_factory=RankSpec)
    is_skipped: Callable[[str], bool] | None = None


class LoadFormat(Plugin):
    """Reads one family of files. `why_not(Checkpoint)` says why the folder is not of this format.

    Nothing outside the folder is read, no pickled code runs, and sizes in headers are checked
    against the file before anything is mapped.
    """

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "lazy": "holds at most one tensor beyond those the caller keeps",
        "random_weights": "generates random weights instead of reading them",
        "writes_cache": "writes converted files into the checkpoint folder",
        "divided": "yields the parameters of one rank, named and divided as in the model",
        "writes": "has `write`: `dovetail convert` can write checkpoints of this format",
    }

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every (name, tensor) of the checkpoint once, in any order; skipped ones may be
        left out.

        Raises: ConfigError naming the file that is missing, short or malformed.
        """

    def headers(self, checkpoint: Checkpoint) -> Iterable[TensorHeader] | None:
        """Return the headers of the tensors that `tensors` would yield, read without torch.

        None: the files have no such heads. Raises: ConfigError as `tensors` does.
        """
        return None

    @classmethod
    def write(
        cls, folder: str, tensors: Iterable[tuple[str, torch.Tensor]], *, rank: RankSpec
    ) -> int:
        """Write the tensors into `folder`, for one rank; return the bytes of all files written.

        Only formats that say "writes" have it. Those that are not "divided" are asked for rank 0
        alone. Raises: ConfigError when the folder cannot be written.
        """
        raise NotImplementedError

    @classmethod
    def write_sample(cls, folder: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a checkpoint of this format, for the conformance kit.

        Formats that read what the kit writes itself (safetensors, torch's .bin) leave it out, and
        so do those that have `write`.
        """
        if "writes" not in cls.capabilities:
            raise NotImplementedError
        cls.write(folder, tensors.items(), rank=RankSpec())
