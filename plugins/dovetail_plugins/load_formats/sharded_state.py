"""ShardedState: the parameters of each rank in separate files, named and cut as the model holds
them. Written by `dovetail convert --to sharded_state`; nothing is renamed, fused or cut on loading.

Files: model-rank-R-part-P.safetensors. Their metadata has the number of ranks; for files of another
writer, without it, the number of distinct rank numbers counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import check_nonempty, is_ignored, why_no_folder

if TYPE_CHECKING:
    import torch

PATTERN = "model-rank-{rank}-part-{part}.safetensors"
RANKS = "ranks"
"""The metadata entry that holds the number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedOptions:
    """The files' names."""

    pattern: str = field(
        default=PATTERN, metadata={"help": "name of the files, with {rank} and {part} in it"}
    )

    def __post_init__(self) -> None:
        if self.pattern.count("{rank}") != 1 or self.pattern.count("{part}") != 1:
            raise ConfigError(
                f'"{self.pattern}" must have {{rank}} and {{part}} exactly once each.',
                where="load_format.pattern",
                fix=f"write it like {PATTERN}",
            )
        if Path(self.pattern).name != self.pattern:
            raise ConfigError(
                f'"{self.pattern}" is not a file name in the model\'s folder.',
                where="load_format.pattern",
                fix="give a file name, not a path.",
            )


class ShardedState(LoadFormat):
    """The parameters of one rank, exactly as written."""

    info = Info(
        summary="one set of safetensors files per rank, as the model holds them",
        requires=("safetensors",),
    )
    capabilities = frozenset({"lazy", "divided", "writes"})
    Options = ShardedOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this format. `query` is a Checkpoint or None."""
        if query is None:
            return []
        absent = why_no_folder(query)
        if absent:
            return [absent]
        files = files_by_rank(query, PATTERN)
        return [] if files else [f"the folder holds no {PATTERN}"]

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield this rank's parameters. Raises: ConfigError when the ranks are not as many."""
        from dovetail_plugins.load_formats._shards import READERS, read_shards

        files = rank_files(checkpoint, self.options.pattern)
        return read_shards(files, checkpoint, READERS["lazy"])

    @classmethod
    def write(
        cls, folder: str, tensors: Iterable[tuple[str, torch.Tensor]], *, rank: RankSpec
    ) -> int:
        """Write one rank's files; return their bytes. Raises: ConfigError."""
        from dovetail_plugins.load_formats._safetensors_write import write_parts

        name = PATTERN.replace("{rank}", str(rank.rank))
        return write_parts(
            lambda part: Path(folder) / name.replace("{part}", str(part)),
            tensors,
            {RANKS: str(rank.world_size)},
        )


def rank_files(checkpoint: Checkpoint, pattern: str) -> list[Path]:
    """Return the files of the checkpoint's rank, in order.

    Raises: ConfigError when there are none, a part is missing, or the ranks are not as many.
    """
    files = files_by_rank(checkpoint, pattern)
    check_nonempty(
        checkpoint, [file for parts in files.values() for file in parts.values()], pattern
    )
    rank = checkpoint.rank
    if rank.num_stages > 1:
        raise ConfigError(
            "the files hold a part of every layer for each rank, and stages hold whole layers.",
            where="--pipeline-parallel-size",
            fix="use --tensor-parallel-size, or the checkpoint that they were made from.",
        )
    parts = files.get(rank.rank, {})
    written = _ranks_written(files, parts)
    if written != rank.world_size:
        raise ConfigError(
            f"the weights were divided over {written} ranks, not over {rank.world_size}",
            where=checkpoint.path,
            fix=f"use {written} ranks, or write it again: `dovetail convert --to sharded_state`.",
        )
    absent = sorted(set(range(max(parts, default=0) + 1)) - set(parts))
    if absent:
        name = pattern.replace("{rank}", str(rank.rank)).replace("{part}", str(absent[0]))
        raise ConfigError(
            f"{name} is missing.",
            where=checkpoint.path,
            fix="copy all files of the folder that was written.",
        )
    return [parts[number] for number in sorted(parts)]


def files_by_rank(checkpoint: Checkpoint, pattern: str) -> Mapping[int, dict[int, Path]]:
    """Return rank -> part -> file of the folder's files that the pattern names."""
    text = re.escape(pattern).replace(r"\{rank\}", r"(?P<rank>\d{1,6})")
    name = re.compile(text.replace(r"\{part\}", r"(?P<part>\d{1,6})"))
    files: dict[int, dict[int, Path]] = {}
    folder = Path(checkpoint.path)
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = name.fullmatch(file.name)
        if match and file.is_file() and not is_ignored(file.name, checkpoint.ignore_patterns):
            files.setdefault(int(match["rank"]), {})[int(match["part"])] = file
    return files


def _ranks_written(found: Mapping[int, dict[int, Path]], parts: Mapping[int, Path]) -> int:
    """Return the number of ranks that wrote the files. Raises: ConfigError."""
    from dovetail_plugins.load_formats._safetensors_header import read_metadata

    texts = [read_metadata(file).get(RANKS, "") for file in parts.values()]
    counts = {int(text) for text in texts if text.isdecimal() and len(text) < 7}
    return counts.pop() if len(counts) == 1 else max(found) + 1
