"""Tensorizer: *.tensors files of the tensorizer package, read without it.

Options: verify_hash checks every tensor's checksums; tensorizer_uri names one file of the folder if
there are several. Layout: see _tensorizer_file. Writing needs the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError, UnavailablePlugin
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import (
    ByteCount,
    check_nonempty,
    weight_files,
    why_no_folder,
)

if TYPE_CHECKING:
    import torch

FILE = "model.tensors"
PATTERNS = ("model*.tensors", "*.tensors")
NO_INDEX = "tensors.index.json"
"""No writer makes an index; the files are found by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorizerOptions:
    """Which file is read, and how."""

    tensorizer_uri: str = field(
        default="", metadata={"help": "name of the file in the folder; all files if left out"}
    )
    verify_hash: bool = field(
        default=False, metadata={"help": "compare every tensor with its checksums"}
    )
    num_readers: int | None = field(
        default=None, metadata={"help": "threads that read ahead, over the flag's own number"}
    )

    def __post_init__(self) -> None:
        uri = self.tensorizer_uri
        if Path(uri).name != uri or uri in (".", ".."):
            raise ConfigError(
                f'"{uri}" is not a file name in the model\'s folder.',
                where="load_format.tensorizer_uri",
                fix="copy the file into the model's folder and give its name.",
            )
        if self.num_readers is not None and self.num_readers < 1:
            raise ConfigError(
                f"{self.num_readers} is not a positive integer.",
                where="load_format.num_readers",
                fix="give 1 or more, or leave it out.",
            )


class Tensorizer(LoadFormat):
    """All tensors of the folder's *.tensors files."""

    info = Info(
        summary="files of the tensorizer package (not encrypted), read without it",
        source="https://github.com/coreweave/tensorizer",
    )
    capabilities = frozenset({"lazy", "writes"})
    Options = TensorizerOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None:
            return []
        absent = why_no_folder(query)
        if absent:
            return [absent]
        files = weight_files(query, index=NO_INDEX, patterns=PATTERNS)
        return [] if files else ["the folder holds no *.tensors file"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once. All indices are checked before the first."""
        from dovetail_plugins.load_formats._ahead import reading_ahead
        from dovetail_plugins.load_formats._shards import check_distinct, spans, wanted_headers
        from dovetail_plugins.load_formats._tensorizer_file import read_index, read_tensors

        uri = self.options.tensorizer_uri
        files = weight_files(checkpoint, index=NO_INDEX, patterns=(uri,) if uri else PATTERNS)
        check_nonempty(checkpoint, files, uri or "*.tensors file")
        found = {path: read_index(path) for path in files}
        check_distinct([index.header for index in found.values()])
        headers = wanted_headers([index.header for index in found.values()], checkpoint)
        wanted = {header.path: spans(header) for header in headers}
        count = ByteCount(checkpoint.progress, sum(h.data_bytes for h in headers))
        num_threads = self.options.num_readers or checkpoint.num_workers
        with reading_ahead(list(wanted), num_threads, wanted) as reach:
            for place, header in enumerate(headers):
                reach(place)
                index = replace(found[header.path], header=header)
                for name, tensor in read_tensors(index, verifies=self.options.verify_hash):
                    yield name, tensor
                    count.add(tensor.nbytes)

    @classmethod
    def write(
        cls, folder: str, tensors: Iterable[tuple[str, torch.Tensor]], *, rank: RankSpec
    ) -> int:
        """Write one file with the package; return its bytes. Raises: UnavailablePlugin without it,
        ConfigError."""
        try:
            from dovetail_plugins.load_formats._tensorizer_write import write_file
        except ModuleNotFoundError as error:
            raise UnavailablePlugin(
                "the tensorizer package is not installed.",
                where="--to tensorizer",
                fix='run `pip install "dovetail-llm[load-formats]"`.',
            ) from error
        return write_file(Path(folder) / FILE, tensors)
