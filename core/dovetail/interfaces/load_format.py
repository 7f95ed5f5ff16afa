"""LoadFormat: a checkpoint folder as a stream of named tensors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, total bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where the weights are and how to read them.

    `shapes` maps wanted names to (shape, dtype name); only formats that generate weights (dummy)
    use it. `ignore_patterns` are glob patterns of files to skip. `num_workers` threads may read
    ahead (None: the format's default). `rank` is the reader's. `is_skipped` says whether the reader
    does not need a tensor, by its name; a format may skip reading such tensors, or yield them
    anyway.
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

    Implementations read nothing outside the folder, run no pickled code, and check sizes in headers
    against the file before they map anything.
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
        """Yield every (name, tensor) of the checkpoint once, in any order; skipped ones may be left
        out.

        Raises: ConfigError naming the file that is missing, short or malformed.
        """

    def headers(self, checkpoint: Checkpoint) -> Iterable[TensorHeader] | None:
        """Return the headers of the tensors that `tensors` would yield, read without torch.

        None: the files have no such headers. Raises: ConfigError as `tensors` does.
        """
        return None

    @classmethod
    def write(
        cls, folder: str, tensors: Iterable[tuple[str, torch.Tensor]], *, rank: RankSpec
    ) -> int:
        """Write one rank's tensors into `folder`; return the bytes of all files written.

        Only for formats with "writes". Those without "divided" are called for rank 0 only. Raises:
        ConfigError when the folder cannot be written.
        """
        raise NotImplementedError

    @classmethod
    def write_sample(cls, folder: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a checkpoint of this format, for the conformance kit.

        Not needed for formats that the kit writes itself (safetensors, torch's .bin) or that have
        `write`.
        """
        if "writes" not in cls.capabilities:
            raise NotImplementedError
        cls.write(folder, tensors.items(), rank=RankSpec())
